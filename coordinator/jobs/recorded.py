"""What a run remembers, and the one function that changes it: a record. Resuming is a fold of the records, and nothing else.

A running coordinator changes what it remembers through `after` alone, so what it knows and what its store could tell are
the same thing at every instant. Knows records, schedules and plans; nothing of sessions, timers or files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, assert_never

from coordinator.records import (
    Closed,
    Delivered,
    Ended,
    MembershipChanged,
    Record,
    SiteExcluded,
    Sites,
    Snapshot,
    StepTaken,
)
from coreg_core.messages import PlanAccepted, Vector
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.rounds import make_schedule
from coreg_core.rounds.schedule import FinalTargets, Progress, Schedule, Terms, overall_stop


@dataclass(frozen=True)
class Recorded:
    """Everything of a run that survives its process. ``schedule`` and ``state`` are None before the first membership."""

    plan: Plan
    accepted: Mapping[str, PlanAccepted] = field(default_factory=dict)  # what each agreed to who ever took part
    excluded: Mapping[str, SiteExcluded] = field(default_factory=dict)
    participants: Sites = ()  # of the current attempt, in site order
    returns: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    attempt: int = 0
    question: int = 0
    schedule: Schedule[Any] | None = None
    state: Any = None
    affine: Mapping[Sites, Vector] = field(default_factory=dict)
    ended: Ended | None = None
    fetched: frozenset[str] = frozenset()
    closed: bool = False

    @property
    def models(self) -> FinalTargets | None:
        """What the sites' models answer to; None where no round was verified."""
        if self.ended is not None:
            return self.ended.models
        return None if self.schedule is None or self.state is None else self.schedule.models(self.state)

    @property
    def progress(self) -> Progress | None:
        """What the last step showed."""
        return None if self.schedule is None or self.state is None else self.schedule.progress(self.state)

    @property
    def outcome(self) -> Outcome | None:
        """How the schedule has ended; None while it runs, and before it began."""
        if self.schedule is None or self.state is None or not self.schedule.finished(self.state):
            return None
        progress = self.progress
        stop = None if progress is None else overall_stop(progress.stops)
        return Outcome.MAX_ROUNDS if stop is None else Outcome[stop.name]


def terms_of(plan: Plan, accepted: Mapping[str, PlanAccepted], participants: Sites) -> Terms:
    """What the schedule has to know of these sites."""
    agreed = [accepted[site] for site in participants]
    return Terms(
        coupling=plan.couplings,
        bounds=tuple(a.bound for a in agreed),
        initial_objective=sum(a.squared_norm for a in agreed),
        tolerance=plan.iteration.tolerance,
        prediction_tolerance=plan.iteration.prediction_tolerance,
        max_rounds=plan.iteration.max_rounds,
    )


def after(recorded: Recorded, record: Record) -> Recorded:
    """What a run remembers once this record is written."""
    match record:
        case SiteExcluded(site=site):
            return replace(recorded, excluded={**recorded.excluded, site: record})
        case MembershipChanged():
            terms = terms_of(recorded.plan, record.accepted, record.participants)
            schedule = make_schedule(recorded.plan.iteration.name, terms)
            return replace(
                recorded,
                accepted=record.accepted,
                participants=record.participants,
                returns=record.returns,
                dropped=record.dropped,
                attempt=record.attempt,
                question=record.question,
                schedule=schedule,
                state=schedule.restore(record.state) if record.state else None,
                affine=record.affine,
            )
        case StepTaken(part=part, total=total):
            assert recorded.schedule is not None, "a step before any membership"
            affine = recorded.affine
            # Of the schedules, conjugate gradients alone ask the same affine question (at target 0) again.
            if part == "affine" and recorded.plan.iteration.name == "conjugate-gradients":
                affine = {**affine, recorded.participants: total}
            state = recorded.schedule.step(recorded.state, total.values)
            return replace(recorded, state=state, question=record.question + 1, affine=affine)
        case Snapshot():
            assert recorded.schedule is not None, "a snapshot before any membership"
            state = recorded.schedule.restore(record.state)
            return replace(recorded, state=state, question=record.question, affine=record.affine)
        case Ended():
            return replace(recorded, ended=record)
        case Delivered(site=site):
            return replace(recorded, fetched=recorded.fetched | {site})
        case Closed():
            return replace(recorded, closed=True)
        case _:
            assert_never(record)


def resume(plan: Plan, records: Iterable[Record]) -> Recorded:
    """What a run of this plan remembers after these records, from the first on."""
    return reduce(after, records, Recorded(plan))
