"""Putting a question to the sites of a run: to whom, on trial to whom else, and which answers are held already.

Works on a `RunUpdate`.  The least of the rooms of a run's rounds: membership.py and training.py call it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from coordinator.machine.phases import Transition
from coordinator.machine.run import RunUpdate
from coordinator.machine.sums import Answer
from coreg_core.errors import CoregError
from coreg_core.protocol.messages import Ask, Inquiry, Participant, Roster


def next_question(update: RunUpdate) -> str | None:
    """Put the schedule's next question to those whom it asks; answers that are held already are not asked again.

    Returns why there is none: a state that no question follows from, since answers of absurd size overflowed in it.
    """
    recorded = update.recorded
    assert recorded.computation is not None
    try:
        ask, site = recorded.computation.question(recorded.state, recorded.question, recorded.attempt)
    except (CoregError, ArithmeticError, np.linalg.LinAlgError, ValueError) as error:
        return f"no question follows from the answers before question {recorded.question} ({error}): some site's are too large."
    members = recorded.participants
    asked = members if site is None else (members[site],)
    update.take(Transition.ASKED)
    held = update.live.held.get(_key(ask), {}) if reusable(update, ask) else {}
    update.change(ask=ask, asked=asked, answers={s: held[s] for s in asked if s in held})
    update.deadline(update.run.timeouts.round)
    for name in update.run.awaited:
        if name in update.live.ready:
            _send(update, name, ask)
    for name in sorted(update.live.ready - set(members) - update.live.proven - update.live.trials.keys()):
        _try_out(update, name)
    return None


def put_to(update: RunUpdate, site: str) -> None:
    """A site accepted the plan while a question is open: ask it where it is asked, and on trial where nobody counts on it."""
    live = update.live
    assert live.ask is not None
    if site in update.recorded.participants:
        if site in live.asked and site not in live.answers:
            _send(update, site, live.ask)
    else:
        _try_out(update, site)


def _send(update: RunUpdate, site: str, ask: Ask | Inquiry) -> None:
    """The question; under masks the roster before it, where the site has not heard it in this session."""
    if update.plan.masked and site not in update.live.rostered:
        update.send(site, roster(update))
        update.change(rostered=update.live.rostered | {site})
    update.send(site, ask)


def roster(update: RunUpdate) -> Roster:
    """Whose answers are summed in this attempt, with the keys that they accepted the plan with."""
    recorded = update.recorded
    told = [(site, recorded.accepted[site]) for site in recorded.participants]
    participants = tuple(Participant(site, a.key, a.signature, a.identity) for site, a in told)
    return Roster(update.run.name, recorded.attempt, participants)


def _try_out(update: RunUpdate, site: str) -> None:
    """Ask it on trial; where the open question makes sense to members alone, to have accepted the plan is proof enough."""
    ask, computation = update.live.ask, update.recorded.computation
    assert ask is not None
    assert computation is not None
    if not computation.probes_newcomers:
        update.change(proven=update.live.proven | {site})
        return
    update.change(trials={**update.live.trials, site: ask})
    update.send(site, ask)


def reusable(update: RunUpdate, ask: Ask | Inquiry) -> bool:
    """Whether labels are in the answers to this question, and the same one need not be asked twice."""
    computation = update.recorded.computation
    return computation is not None and computation.reusable(ask)


def _key(ask: Ask | Inquiry) -> tuple[Any, ...]:
    return ask.columns


def hold_answers(update: RunUpdate) -> None:
    """The membership changes in the middle of a label-bearing question: what was answered need not be asked again."""
    live = update.live
    if live.ask is not None and live.answers and reusable(update, live.ask):
        hold(update, live.ask, live.answers)


def hold(update: RunUpdate, ask: Ask | Inquiry, answers: Mapping[str, Answer]) -> None:
    """Keep label-bearing answers, so that the same question is not asked again."""
    known = {**update.live.held.get(_key(ask), {}), **answers}
    update.change(held={**update.live.held, _key(ask): known})


def release(update: RunUpdate, ask: Ask | Inquiry) -> None:
    """The question is answered: what was held of it is in the sum."""
    if reusable(update, ask):
        update.change(held={key: held for key, held in update.live.held.items() if key != _key(ask)})
