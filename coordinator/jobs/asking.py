"""Putting a question to the sites of a run: to whom, on trial to whom else, and which answers are held already.

Works on a `Reaction`. Knows what a schedule asks next; nothing of who may take part, and nothing of answers but that they are
there. The least of the rooms of a run's rounds: membership.py and training.py call it.
"""

from collections.abc import Mapping

from coordinator.jobs.phases import Turn
from coordinator.jobs.run import Reaction
from coreg_core.messages import Ask, Vector
from coreg_core.rounds.columns import Column


def next_question(reaction: Reaction) -> None:
    """Put the schedule's next question to those whom it asks; answers that are held already are not asked again."""
    recorded = reaction.recorded
    assert recorded.schedule is not None
    query = recorded.schedule.query(recorded.state)
    weights = query.weights.tolist()
    columns = tuple(Column(lam, mu) for lam, mu in zip(reaction.plan.couplings, weights, strict=True))
    ask = Ask(
        reaction.run.name,
        recorded.question,
        recorded.attempt,
        query.part,
        columns,
        query.verifies,
        Vector(query.targets),
    )
    members = recorded.participants
    asked = members if query.site is None else (members[query.site],)
    reaction.take(Turn.ASKED)
    held = reaction.live.held.get(columns, {}) if asks_labels(reaction, ask) else {}
    reaction.change(ask=ask, asked=asked, answers={s: held[s] for s in asked if s in held})
    reaction.deadline(reaction.run.clocks.round)
    for site in reaction.run.awaited:
        if site in reaction.live.ready:
            reaction.send(site, ask)
    for site in sorted(reaction.live.ready - set(members) - reaction.live.proven - reaction.live.trials.keys()):
        _try_out(reaction, site)


def put_to(reaction: Reaction, site: str) -> None:
    """A site accepted the plan while a question is open: ask it where it is asked, and on trial where nobody counts on it."""
    live = reaction.live
    assert live.ask is not None
    if site in reaction.recorded.participants:
        if site in live.asked and site not in live.answers:
            reaction.send(site, live.ask)
    else:
        _try_out(reaction, site)


def _try_out(reaction: Reaction, site: str) -> None:
    ask = reaction.live.ask
    assert ask is not None
    reaction.change(trials={**reaction.live.trials, site: ask})
    reaction.send(site, ask)


def asks_labels(reaction: Reaction, ask: Ask) -> bool:
    """Whether this is the label-bearing question that conjugate gradients ask once: respond(0, μ)."""
    return ask.part == "affine" and reaction.plan.iteration.name == "conjugate-gradients"


def hold_answers(reaction: Reaction) -> None:
    """The membership changes in the middle of a label-bearing question: what was answered need not be asked again."""
    live = reaction.live
    if live.ask is not None and live.answers and asks_labels(reaction, live.ask):
        hold(reaction, live.ask, live.answers)


def hold(reaction: Reaction, ask: Ask, answers: Mapping[str, Vector]) -> None:
    """Keep label-bearing answers, so that the same question is not asked again."""
    known = {**reaction.live.held.get(ask.columns, {}), **answers}
    reaction.change(held={**reaction.live.held, ask.columns: known})
