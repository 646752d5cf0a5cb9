"""An upgrade in the order of docs/how-to/operate-a-coordinator.md: this release is served by a
coordinator whose release, messages and plans have higher numbers.
"""

import pytest
from federation import SITES, federation, until, well

pytestmark = pytest.mark.e2e

# The next release, as far as its numbers go: a rehearsal stands for a plan with a new term.
NEWER_COORDINATOR = """
import coordinator.machine.federation as messages
from coreg_core.plan import Plan
messages.PROTOCOL_VERSION += 1
Plan.number = property(lambda plan: 2 if plan.rehearsal else 1)
"""
NEWER_AGENT = """
import site_agent.service.daemon as agent
agent.PROTOCOL_VERSION += 1
agent.PLAN_NUMBER += 1
agent.release = lambda: "9.0.0"
"""


def test_a_newer_coordinator_trains_with_agents_of_this_release_and_of_its_own(tmp_path):
    with federation(tmp_path) as fed:
        fed.serve(first=NEWER_COORDINATOR)
        fed.stays("north", first=NEWER_AGENT)
        fed.stays("south")
        fed.stays("west")
        fed.study("known")
        known = fed.submit("known")
        until(lambda: fed.over(known))
        assert fed.run_of(known)["stop"] == "CONVERGED"
        assert fed.kept(known) == fed.undisturbed(known)

        # A plan with a term that this release lacks: its agents are told, and stay.
        fed.study("newer")
        well("coreg-coordinator", "submit", "newer.toml", "--rehearse", cwd=tmp_path)
        [newer] = {run["run"] for run in fed.runs()} - {known}
        told = "does not know the terms of this plan. Upgrade it on the site's machine: pip install"
        for site in ("south", "west"):
            until(lambda site=site: told in fed.said(site))
        well("coreg-coordinator", "cancel", newer, cwd=tmp_path)
        until(lambda: fed.over(newer))
        assert told not in fed.said("north")

        # Their sessions are the same, and other studies go on.
        again = fed.submit("known")
        until(lambda: fed.over(again))
        assert fed.run_of(again)["stop"] == "CONVERGED"
        for site in SITES:
            assert len(fed.events(site, "connected")) == 1, fed.last(site)


def test_an_agent_that_is_upgraded_first_is_told_the_order(tmp_path):
    with federation(tmp_path) as fed:
        fed.serve()
        fed.stays("north", first=NEWER_AGENT)
        until(lambda: "The coordinator is upgraded first" in fed.said("north"))
