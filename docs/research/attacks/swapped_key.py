"""A coordinator that is the certificate authority replaces the key of a site by one of its own, or
adds a site of its own.

A site computes the eight words from its own key and the keys that it received. Therefore the
operators read different words, or a name that none of them knows. A site that has confirmed the
real keys refuses the roster.
"""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from federation import SITES, VICTIM, plan_of, reported, site_of, watched

from coordinator.authority.pki import check_request, create_authority, issue
from coreg_core.messages import Proposal
from coreg_core.plan import Plan
from coreg_sim.simulate import fingerprint_of, identity_of
from site_agent.identity.enrolment import enrol, install
from site_agent.identity.identity import check_identity
from site_agent.identity.members import Members
from site_agent.identity.run_keys import RunKeys

OWN = "the coordinator's own"
ADDED = "e"


def enrolled(folder: Path, **options: Any) -> dict[str, Members]:
    """What each site knows of the members; the authority's certificate is of ``folder``."""
    if not (folder / "ca").exists():
        create_authority(folder / "ca", [])
        for name in SITES:
            request = enrol(folder / name, name)
            install(folder / name, issue(folder / "ca", *check_request(request.read_bytes())))
    return {name: Members(check_identity(folder / name), **options) for name in SITES}


def shown(
    plan: Plan, members: dict[str, Members], keys: dict[str, str]
) -> dict[str, dict[str, str]]:
    """The keys that each site takes from the coordinator's proposal."""
    proposal = Proposal(plan.run, 0, plan, keys=tuple(keys[name] for name in plan.sites))
    return {name: each.keys_of(proposal) for name, each in members.items()}


def words(members: dict[str, Members], keys: dict[str, dict[str, str]]) -> int:
    """How many different sentences the operators read to each other."""
    return len({members[name].words(each) for name, each in keys.items()})


def trained(plan: Plan, members: dict[str, Members], instead: str) -> Any:
    """The refusal of the sealed run in which the coordinator is the site ``instead``; "" if the run
    begins.
    """
    own = {
        name: each[name]
        for name, each in shown(plan, members, dict.fromkeys(plan.sites, "?")).items()
    }
    puppet = RunKeys(
        identity_of(OWN), lambda name: fingerprint_of(OWN) if name == instead else own[name]
    )
    sites = {
        name: site_of(name, keys=puppet if name == instead else members[name].run_keys())
        for name in plan.sites
    }
    seen = watched(plan, sites)
    return "" if seen.rounds else seen.reason


@reported
def attack() -> dict[str, Any]:
    """By lie: how many sites' words differ, what is new to site a, and the reply of sites that
    confirmed the real keys.
    """
    honest = plan_of("secure")
    found = dict[str, Any]()
    more = replace(honest, membership=replace(honest.membership, sites=(*SITES, ADDED)))
    with TemporaryDirectory() as place:
        members = enrolled(Path(place))
        real = shown(honest, members, dict.fromkeys(SITES, "?"))
        keys = {name: real[name][name] for name in SITES}
        found["honest"] = {"words": words(members, shown(honest, members, keys)), "refused": ""}
        for each in members.values():
            each.confirm(keys)
        lies = {
            "swapped": (honest, keys | {VICTIM: fingerprint_of(OWN)}, VICTIM),
            "added": (more, keys | {ADDED: fingerprint_of(OWN)}, ADDED),
        }
        for how, (plan, lie, instead) in lies.items():
            told = shown(plan, members, lie)
            told_to_one = told | {"a": shown(plan, members, keys | {ADDED: ""})["a"]}
            unseen = enrolled(Path(place), accept=True)
            settled = [each.settled(told[name]) for name, each in unseen.items()]
            found[how] = {
                "words": words(members, told),
                "words, a hears the truth": words(members, told_to_one),
                "news": members["a"].news(told["a"]),
                "settled": any(
                    each.settled(told[name]) for name, each in members.items() if name != instead
                ),
                "refused": trained(plan, members, instead),
                "refused, words taken unseen": trained(plan, unseen, instead)
                if all(settled)
                else "not settled",
            }
    return found
