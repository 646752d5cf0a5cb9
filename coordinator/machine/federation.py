"""Who is there, and which run a message belongs to: sessions apart from runs. No socket, no clock, no file.

A session says who is there; it is opened by `Hello`, ended by `Leaving` or by its loss, and carries any number of runs.
A run hears of the sessions of its sites and gets the messages that name it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from coordinator.machine import dispatch, notices
from coordinator.machine.dispatch import Happening
from coordinator.machine.events import (
    Action,
    Breached,
    Cancelled,
    DeadlinePassed,
    Draining,
    Event,
    Interrupted,
    Notify,
    Received,
    Reject,
    Relisted,
    Revoked,
    SiteJoined,
    SiteLost,
    Submitted,
    TurnedAway,
)
from coordinator.machine.phases import Clocks, Phase
from coordinator.machine.run import Run
from coordinator.machine.state import Recorded, resume
from coreg_core.protocol.messages import PROTOCOL_VERSION, Hello, Leaving


@dataclass(frozen=True)
class Federation:
    """Open sessions by site, and the runs by name.

    ``standing`` are the sites that are welcome whether or not a run wants them, and ``clocks`` those of the runs that are
    submitted: of a federation that stands. One without them is a federation of the runs that it was begun with.
    """

    sessions: Mapping[str, Hello] = field(default_factory=dict)
    runs: Mapping[str, Run] = field(default_factory=dict)
    standing: tuple[str, ...] | None = None
    clocks: Clocks = field(default_factory=Clocks)

    @property
    def done(self) -> bool:
        """No run is under way, and none will be."""
        return self.standing is None and all(run.phase is Phase.DONE for run in self.runs.values())


def begin(recorded: Recorded, clocks: Clocks, federation: Federation | None = None) -> tuple[Federation, list[Action]]:
    """Put a run in: new, unfinished, or to be delivered. Sessions that are open join it at once."""
    federation = federation or Federation()
    run, actions = dispatch.begin(recorded, clocks)
    federation = replace(federation, runs={**federation.runs, run.name: run})
    for site in sorted(federation.sessions):
        if site in run.plan.sites:
            federation, more = _tell(federation, [run.name], Happening.JOINED, site)
            actions += more
    return federation, actions


def handle(federation: Federation, event: Event) -> tuple[Federation, list[Action]]:
    """What an event makes of the federation."""
    federation, actions = _handled(federation, event)
    if federation.standing is not None and any(run.phase is Phase.DONE for run in federation.runs.values()):
        kept = {name: run for name, run in federation.runs.items() if run.phase is not Phase.DONE}
        federation = replace(federation, runs=kept)  # it stands for months: what is over is in the store
    return federation, actions


def _handled(federation: Federation, event: Event) -> tuple[Federation, list[Action]]:
    match event:
        case SiteJoined(hello, until):
            return _joined(federation, hello, until)
        case Received(site):
            return _received(federation, event) if site in federation.sessions else (federation, [])
        case SiteLost(site, reason):
            return _ended(federation, site, Happening.LOST, reason)
        case Breached(site, reason):
            return _ended(federation, site, Happening.BREACHED, reason)
        case TurnedAway(name, reason):
            return federation, [Notify(notices.SessionTurnedAway(name, reason))]
        case DeadlinePassed(run, token, flows):
            counts = run in federation.runs and federation.runs[run].live.token == token
            return _tell(federation, [run], Happening.DEADLINE, flows) if counts else (federation, [])
        case Interrupted():
            return _tell(replace(federation, standing=None), federation.runs, Happening.INTERRUPTED)
        case Submitted(plan, records):
            return begin(resume(plan, records), federation.clocks, federation)
        case Cancelled(run, reason):
            known = [run] if run in federation.runs else []
            return _tell(federation, known, Happening.CANCELLED, reason)
        case Revoked(site, reason):
            return _put_out(federation, site, reason)
        case Relisted(sites):
            return _relisted(federation, sites)
        case Draining():
            under_way = [name for name, run in federation.runs.items() if run.phase is not Phase.DELIVERING]
            return _tell(replace(federation, standing=None), under_way, Happening.INTERRUPTED)
        case _:
            assert_never(event)


def _put_out(federation: Federation, site: str, reason: str) -> tuple[Federation, list[Action]]:
    if site not in federation.sessions:
        return federation, []
    federation, actions = _ended(federation, site, Happening.LOST, reason)
    return federation, [Reject(site, reason), Notify(notices.SessionRejected(site, reason)), *actions]


def _relisted(federation: Federation, sites: tuple[str, ...]) -> tuple[Federation, list[Action]]:
    federation, actions = replace(federation, standing=sites), list[Action]()
    for site in sorted(federation.sessions.keys() - set(sites)):
        federation, more = _put_out(federation, site, f"{site}: no longer in this federation's list of sites.")
        actions += more
    return federation, actions


def _joined(federation: Federation, hello: Hello, until: str) -> tuple[Federation, list[Action]]:
    if reason := _objection(federation, hello):
        # It replaced whatever session the site had, and cannot stay itself.
        federation, actions = _ended(federation, hello.site, Happening.LOST, "its session was replaced")
        told: list[Action] = [Reject(hello.site, reason), Notify(notices.SessionRejected(hello.site, reason))]
        return federation, [*told, *actions]
    federation = replace(federation, sessions={**federation.sessions, hello.site: hello})
    opened: list[Action] = []
    if federation.standing is not None:
        opened.append(Notify(notices.SessionOpened(hello.site, hello.release, until)))
    federation, actions = _tell(federation, _runs_of(federation, hello.site), Happening.JOINED, hello.site)
    return federation, [*opened, *actions]


def _objection(federation: Federation, hello: Hello) -> str | None:
    site = hello.site
    if hello.protocol != PROTOCOL_VERSION:
        return (
            f"{site}: speaks protocol {hello.protocol}, this coordinator {PROTOCOL_VERSION}. "
            "Install the same release of coreg-federation on both sides."
        )
    if federation.done:
        return f"{site}: run {', '.join(federation.runs)} is over."
    listed = sorted({s for run in federation.runs.values() for s in run.plan.sites} | set(federation.standing or ()))
    if site not in listed:
        return f"{site}: not in this federation's list of sites ({', '.join(listed)}). Add it to federation.toml."
    return None


def _received(federation: Federation, received: Received) -> tuple[Federation, list[Action]]:
    site = received.site
    match received.message:
        case Leaving(reason):
            return _ended(federation, site, Happening.LEFT, reason)
        case Hello():
            told = f"{site} said hello twice in one session."
            federation, actions = _ended(federation, site, Happening.BREACHED, told)
            return federation, [Reject(site, told), *actions]
        case message:
            happening = dispatch.happened(message)
            assert happening is not None
            mine = [message.run] if message.run in _runs_of(federation, site) else []
            # A run that dismissed a site, or never heard of its session, does not listen to it either.
            heard = [name for name in mine if site in federation.runs[name].live.here]
            details = (site, received.signed) if happening is Happening.FETCHED else (site, message)
            return _tell(federation, heard, happening, *details)


def _ended(federation: Federation, site: str, how: Happening, reason: str) -> tuple[Federation, list[Action]]:
    if site not in federation.sessions:
        return federation, []  # it was rejected or replaced
    federation = _without(federation, site)
    federation, actions = _tell(federation, _runs_of(federation, site), how, site, reason)
    if federation.standing is not None:
        actions.append(Notify(notices.SessionEnded(site, reason)))
    return federation, actions


def _without(federation: Federation, site: str) -> Federation:
    return replace(federation, sessions={s: hello for s, hello in federation.sessions.items() if s != site})


def _runs_of(federation: Federation, site: str) -> list[str]:
    return [name for name, run in federation.runs.items() if site in run.plan.sites]


def _tell(
    federation: Federation, runs: Iterable[str], happening: Happening, *details: Any
) -> tuple[Federation, list[Action]]:
    changed, actions = dict(federation.runs), list[Action]()
    for name in list(runs):
        changed[name], more = dispatch.handle(changed[name], happening, *details)
        actions += more
    return replace(federation, runs=changed), actions
