"""A peer that is frozen, with its connection open and its kernel answering: noticed within the promise, and taken back."""

import signal
import time

import pytest
from federation import SITES, ends, federation, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ENDLESS = {
    "schedule": "consensus",
    "coupling": 3.0,
    "tolerance": 0.0,
    "prediction_tolerance": 0.0,
    "max_rounds": 10_000,
}
# keepalive is a second there: a ping a second, and 0.8 of one to answer it. A loaded machine gets some time more.
COORDINATOR_NOTICES = 6.0
# The agent pings every 5 s, and waits 4 s for the answer where its link is as fast as it says.
AGENT_NOTICES = 14.0


def lost(fed):
    return [event["site"] for event in fed.events() if event["event"] == "left" and event["lost"]]


def test_a_frozen_agent_is_noticed_by_the_coordinator_and_taken_back(tmp_path):
    with federation(tmp_path, **ENDLESS, round=60, stall=60) as fed:
        fed.coordinator()
        agents = {site: fed.agent(site) for site in SITES}
        until(lambda: fed.rounds() >= 10)
        agents["west"].send_signal(signal.SIGSTOP)
        frozen = time.monotonic()
        until(lambda: lost(fed), 30)
        assert time.monotonic() - frozen < COORDINATOR_NOTICES, "its round has a minute"
        assert lost(fed) == ["west"], "and nobody else"
        stopped_at = fed.rounds()
        agents["west"].send_signal(signal.SIGCONT)
        until(lambda: fed.rounds() > stopped_at + 10)
        assert agents["west"].poll() is None


def test_a_frozen_coordinator_is_noticed_by_the_agents_and_found_again(tmp_path):
    with federation(tmp_path, **ENDLESS, round=60, stall=60) as fed:
        coordinator = fed.coordinator()
        agents = [fed.agent(site, "--least-bandwidth", 1e8) for site in SITES]
        until(lambda: fed.rounds() >= 10)
        coordinator.send_signal(signal.SIGSTOP)
        frozen = time.monotonic()
        until(lambda: all("no session with" in fed.said(site) for site in SITES), 40)
        assert time.monotonic() - frozen < AGENT_NOTICES
        stopped_at = fed.rounds()
        coordinator.send_signal(signal.SIGCONT)
        until(lambda: fed.rounds() > stopped_at + 10)
        assert [agent.poll() for agent in agents] == [None, None, None]
        coordinator.send_signal(signal.SIGTERM)
        assert ends(coordinator) == 130, fed.said("coordinator")
