"""Putting a question to the sites of a run: to whom, on trial to whom else, and which answers are held already.

Works on a `Reaction`.  The least of the rooms of a run's rounds: membership.py and training.py call it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from coordinator.machine.phases import Turn
from coordinator.machine.run import Reaction
from coordinator.machine.sums import Answer
from coreg_core.errors import CoregError
from coreg_core.protocol.messages import Ask, Inquiry, Participant, Roster


def next_question(reaction: Reaction) -> str | None:
    """Put the schedule's next question to those whom it asks; answers that are held already are not asked again.

    Returns why there is none: a state that no question follows from, since answers of absurd size overflowed in it.
    """
    recorded = reaction.recorded
    assert recorded.computation is not None
    try:
        ask, site = recorded.computation.question(recorded.state, recorded.question, recorded.attempt)
    except (CoregError, ArithmeticError, np.linalg.LinAlgError, ValueError) as error:
        return f"no question follows from the answers before question {recorded.question} ({error}): some site's are too large."
    members = recorded.participants
    asked = members if site is None else (members[site],)
    reaction.take(Turn.ASKED)
    held = reaction.live.held.get(_key(ask), {}) if asked_once(reaction, ask) else {}
    reaction.change(ask=ask, asked=asked, answers={s: held[s] for s in asked if s in held})
    reaction.deadline(reaction.run.clocks.round)
    for name in reaction.run.awaited:
        if name in reaction.live.ready:
            _send(reaction, name, ask)
    for name in sorted(reaction.live.ready - set(members) - reaction.live.proven - reaction.live.trials.keys()):
        _try_out(reaction, name)
    return None


def put_to(reaction: Reaction, site: str) -> None:
    """A site accepted the plan while a question is open: ask it where it is asked, and on trial where nobody counts on it."""
    live = reaction.live
    assert live.ask is not None
    if site in reaction.recorded.participants:
        if site in live.asked and site not in live.answers:
            _send(reaction, site, live.ask)
    else:
        _try_out(reaction, site)


def _send(reaction: Reaction, site: str, ask: Ask | Inquiry) -> None:
    """The question; under masks the roster before it, where the site has not heard it in this session."""
    if reaction.plan.masked and site not in reaction.live.rostered:
        reaction.send(site, roster(reaction))
        reaction.change(rostered=reaction.live.rostered | {site})
    reaction.send(site, ask)


def roster(reaction: Reaction) -> Roster:
    """Whose answers are summed in this attempt, with the keys that they accepted the plan with."""
    recorded = reaction.recorded
    told = [(site, recorded.accepted[site]) for site in recorded.participants]
    participants = tuple(Participant(site, a.key, a.signature, a.identity) for site, a in told)
    return Roster(reaction.run.name, recorded.attempt, participants)


def _try_out(reaction: Reaction, site: str) -> None:
    """Ask it on trial; where the open question makes sense to members alone, to have accepted the plan is proof enough."""
    ask, computation = reaction.live.ask, reaction.recorded.computation
    assert ask is not None
    assert computation is not None
    if not computation.tries_out:
        reaction.change(proven=reaction.live.proven | {site})
        return
    reaction.change(trials={**reaction.live.trials, site: ask})
    reaction.send(site, ask)


def asked_once(reaction: Reaction, ask: Ask | Inquiry) -> bool:
    """Whether labels are in the answers to this question, and the same one need not be asked twice."""
    computation = reaction.recorded.computation
    return computation is not None and computation.asked_once(ask)


def _key(ask: Ask | Inquiry) -> tuple[Any, ...]:
    return ask.columns


def hold_answers(reaction: Reaction) -> None:
    """The membership changes in the middle of a label-bearing question: what was answered need not be asked again."""
    live = reaction.live
    if live.ask is not None and live.answers and asked_once(reaction, live.ask):
        hold(reaction, live.ask, live.answers)


def hold(reaction: Reaction, ask: Ask | Inquiry, answers: Mapping[str, Answer]) -> None:
    """Keep label-bearing answers, so that the same question is not asked again."""
    known = {**reaction.live.held.get(_key(ask), {}), **answers}
    reaction.change(held={**reaction.live.held, _key(ask): known})


def release(reaction: Reaction, ask: Ask | Inquiry) -> None:
    """The question is answered: what was held of it is in the sum."""
    if asked_once(reaction, ask):
        reaction.change(held={key: held for key, held in reaction.live.held.items() if key != _key(ask)})
