"""The rounds of a run: taking answers, stepping the schedule with their sum, and what to do when time is up.

Handlers of a `Reaction`; the table that calls them is in machine.py. Sums are taken in site order, whatever the order of
arrival. Knows vectors by shape and finiteness; what they mean is the schedule's business.
"""

import numpy as np

from coordinator import notices
from coordinator.jobs import asking, delivery, membership
from coordinator.jobs.phases import Phase, Turn
from coordinator.jobs.run import Reaction
from coordinator.records import Snapshot, StepTaken
from coreg_core.messages import Ask, Fault, Prediction, Vector
from coreg_core.outcomes import Outcome

SNAPSHOT_EVERY = 20  # questions: so many sums at most are replayed when a run is taken up again


# --- answers ------------------------------------------------------------------------------------------------------


def answered(reaction: Reaction, site: str, prediction: Prediction) -> None:
    """A vector came: of the open question, or of one that was asked on trial; anything else is late or repeated."""
    live = reaction.live
    ask = live.ask
    assert ask is not None
    if site not in live.ready:
        return  # not yet in the plan in this session; it will be asked again
    number = (prediction.question, prediction.attempt)
    trial = live.trials.get(site)
    if number == (ask.question, ask.attempt) and site in live.asked and site not in live.answers:
        if _usable(reaction, site, prediction, ask):
            reaction.change(answers={**live.answers, site: prediction.values})
            if not reaction.run.complete:
                go_on(reaction)
    elif trial is not None and number == (trial.question, trial.attempt) and _usable(reaction, site, prediction, trial):
        if asking.asks_labels(reaction, trial):
            asking.hold(reaction, trial, {site: prediction.values})
        trials = {s: asked for s, asked in reaction.live.trials.items() if s != site}
        reaction.change(trials=trials, proven=reaction.live.proven | {site})
        go_on(reaction)


def _usable(reaction: Reaction, site: str, prediction: Prediction, ask: Ask) -> bool:
    values, number = prediction.values, prediction.question
    if values.shape != ask.targets.shape:
        reason = (
            f"{site}: {values.shape} predictions to question {number}, expected {ask.targets.shape}. "
            "Check that its unlabelled file lists the shared instances."
        )
    elif not values.finite:
        reason = f"{site}: NaN or infinity among its predictions to question {number}. Check its features."
    else:
        return True
    membership.exclude(reaction, site, Outcome.SITE_FAULT, reason)
    return False


def faulted(reaction: Reaction, site: str, fault: Fault) -> None:
    """A site cannot or may not answer; a question that was meant for the session before does not count."""
    live = reaction.live
    numbers = {(a.question, a.attempt) for a in (live.ask, live.trials.get(site)) if a is not None}
    if site in live.ready and (fault.question, fault.attempt) in numbers:
        membership.exclude(reaction, site, Outcome.SITE_FAULT, f"{site}: {fault.reason}")


def go_on(reaction: Reaction) -> None:
    """A run that stalled goes on once enough have answered, where the plan can do without the others."""
    live, terms = reaction.live, reaction.plan.membership
    if live.phase is not Phase.STALLED or terms.on_lost != "continue":
        return  # asked after every answer: what follows looks at every site
    here = _not_awaited(reaction)
    here += [s for s in sorted(live.proven & live.ready) if s not in here]
    if len(here) >= terms.min_sites:
        membership.drop(reaction, here)


def _not_awaited(reaction: Reaction) -> list[str]:
    awaited = frozenset(reaction.run.awaited)
    return [s for s in reaction.recorded.participants if s in reaction.live.ready and s not in awaited]


def settle(reaction: Reaction) -> None:
    """Whatever happened: where everybody who was asked has answered, step; held answers may answer the next question too."""
    while reaction.live.phase in (Phase.ASKING, Phase.STALLED) and reaction.run.complete:
        _step(reaction)


def _step(reaction: Reaction) -> None:
    """The sum, what it shows, and what comes next."""
    live = reaction.live
    assert live.ask is not None
    ask, total = live.ask, live.answers[live.asked[0]].values
    with np.errstate(over="ignore", invalid="ignore"):  # judged below, in words
        for site in live.asked[1:]:  # in site order, so that arrival order cannot change a bit
            total = total + live.answers[site].values
    if not Vector(total).finite:  # finite answers whose sum is none: whoever has the largest cannot be meant
        worst = max(live.asked, key=lambda site: float(np.abs(live.answers[site].values).max()))
        reason = f"{worst}: its predictions to question {ask.question} are so large that their sum overflows. Check its features."
        membership.exclude(reaction, worst, Outcome.SITE_FAULT, reason)
        return
    reaction.record(StepTaken(ask.question, ask.attempt, ask.part, Vector(total), len(live.answers)))
    recorded = reaction.recorded
    shown = notices.QuestionAnswered(reaction.run.name, ask.question, ask.attempt, len(live.answers), recorded.progress)
    reaction.notify(shown)
    if asking.asks_labels(reaction, ask):
        reaction.change(held={c: a for c, a in live.held.items() if c != ask.columns})
    reaction.change(ask=None, asked=(), answers={})
    if (outcome := recorded.outcome) is not None:
        delivery.end(reaction, outcome, "")
        return
    if recorded.question % SNAPSHOT_EVERY == 0:
        reaction.record(Snapshot(recorded.question, recorded.state.to_arrays(), recorded.affine))
    if back := membership.returning(reaction):  # at a round's end, never in its middle
        membership.regroup(reaction, [*recorded.participants, *back])
    else:
        asking.next_question(reaction)


# --- time ---------------------------------------------------------------------------------------------------------


def out_of_time(reaction: Reaction) -> None:
    """Not everybody answered within the round's time: go on without, or wait."""
    terms, here = reaction.plan.membership, _not_awaited(reaction)
    if terms.on_lost == "continue" and len(here) >= terms.min_sites:
        membership.drop(reaction, here)
        return
    missing = reaction.run.awaited
    reaction.take(Turn.STALLED)
    reaction.notify(notices.Stalled(reaction.run.name, missing, reaction.run.clocks.stall))
    reaction.deadline(reaction.run.clocks.stall)
