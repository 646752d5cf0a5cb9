"""Who is there, and which run a message belongs to: sessions apart from runs. No socket, no clock, no file.

A session says who is there; it is opened by `Hello`, ended by `Leaving` or by its loss, and carries any number of runs.
A run hears of the sessions of its sites and gets the messages that name it. Knows nothing of what a run does with them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from coordinator import notices
from coordinator.events import (
    Action,
    Breached,
    DeadlinePassed,
    Event,
    Interrupted,
    Notify,
    Received,
    Reject,
    SiteJoined,
    SiteLost,
    TurnedAway,
)
from coordinator.jobs import machine
from coordinator.jobs.machine import Happening
from coordinator.jobs.phases import Clocks, Phase
from coordinator.jobs.recorded import Recorded
from coordinator.jobs.run import Run
from coreg_core.messages import PROTOCOL_VERSION, FromSite, Hello, Leaving


@dataclass(frozen=True)
class Federation:
    """Open sessions by site, and the runs by name."""

    sessions: Mapping[str, Hello] = field(default_factory=dict)
    runs: Mapping[str, Run] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """No run is under way."""
        return all(run.phase is Phase.DONE for run in self.runs.values())


def begin(recorded: Recorded, clocks: Clocks, federation: Federation | None = None) -> tuple[Federation, list[Action]]:
    """Put a run in: new, unfinished, or to be delivered. Sessions that are open join it at once."""
    federation = federation or Federation()
    run, actions = machine.begin(recorded, clocks)
    federation = replace(federation, runs={**federation.runs, run.name: run})
    for site in sorted(federation.sessions):
        if site in run.plan.sites:
            federation, more = _tell(federation, [run.name], Happening.JOINED, site)
            actions += more
    return federation, actions


def handle(federation: Federation, event: Event) -> tuple[Federation, list[Action]]:
    """What an event makes of the federation."""
    match event:
        case SiteJoined(hello):
            return _joined(federation, hello)
        case Received(site, message):
            return _received(federation, site, message) if site in federation.sessions else (federation, [])
        case SiteLost(site, reason):
            return _ended(federation, site, Happening.LOST, reason)
        case Breached(site, reason):
            return _ended(federation, site, Happening.BREACHED, reason)
        case TurnedAway(name, reason):
            return federation, [Notify(notices.SessionTurnedAway(name, reason))]
        case DeadlinePassed(run, token):
            counts = run in federation.runs and federation.runs[run].live.token == token
            return _tell(federation, [run], Happening.DEADLINE) if counts else (federation, [])
        case Interrupted():
            return _tell(federation, federation.runs, Happening.INTERRUPTED)
        case _:
            assert_never(event)


def _joined(federation: Federation, hello: Hello) -> tuple[Federation, list[Action]]:
    if reason := _objection(federation, hello):
        # It replaced whatever session the site had, and cannot stay itself.
        federation, actions = _ended(federation, hello.site, Happening.LOST, "its session was replaced")
        told: list[Action] = [Reject(hello.site, reason), Notify(notices.SessionRejected(hello.site, reason))]
        return federation, [*told, *actions]
    federation = replace(federation, sessions={**federation.sessions, hello.site: hello})
    return _tell(federation, _runs_of(federation, hello.site), Happening.JOINED, hello.site)


def _objection(federation: Federation, hello: Hello) -> str | None:
    site = hello.site
    if hello.protocol != PROTOCOL_VERSION:
        return (
            f"{site}: speaks protocol {hello.protocol}, this coordinator {PROTOCOL_VERSION}. "
            "Install the same release of coreg-federation on both sides."
        )
    if federation.done:
        return f"{site}: run {', '.join(federation.runs)} is over."
    listed = sorted({s for run in federation.runs.values() for s in run.plan.sites})
    if site not in listed:
        return f"{site}: not in this federation's list of sites ({', '.join(listed)}). Add it to federation.toml."
    return None


def _received(federation: Federation, site: str, message: FromSite) -> tuple[Federation, list[Action]]:
    match message:
        case Leaving(reason):
            return _ended(federation, site, Happening.LEFT, reason)
        case Hello():
            told = f"{site} said hello twice in one session."
            federation, actions = _ended(federation, site, Happening.BREACHED, told)
            return federation, [Reject(site, told), *actions]
        case _:
            happening = machine.happened(message)
            assert happening is not None
            mine = [message.run] if message.run in _runs_of(federation, site) else []
            # A run that dismissed a site, or never heard of its session, does not listen to it either.
            heard = [name for name in mine if site in federation.runs[name].live.here]
            details = (site,) if happening is Happening.FETCHED else (site, message)
            return _tell(federation, heard, happening, *details)


def _ended(federation: Federation, site: str, how: Happening, reason: str) -> tuple[Federation, list[Action]]:
    if site not in federation.sessions:
        return federation, []  # it was rejected or replaced
    federation = _without(federation, site)
    return _tell(federation, _runs_of(federation, site), how, site, reason)


def _without(federation: Federation, site: str) -> Federation:
    return replace(federation, sessions={s: hello for s, hello in federation.sessions.items() if s != site})


def _runs_of(federation: Federation, site: str) -> list[str]:
    return [name for name, run in federation.runs.items() if site in run.plan.sites]


def _tell(
    federation: Federation, runs: Iterable[str], happening: Happening, *details: Any
) -> tuple[Federation, list[Action]]:
    changed, actions = dict(federation.runs), list[Action]()
    for name in list(runs):
        changed[name], more = machine.handle(changed[name], happening, *details)
        actions += more
    return replace(federation, runs=changed), actions
