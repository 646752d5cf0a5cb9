"""What a run remembers, and the one function that changes it: a record. Resuming is a fold of the records, and nothing
else.

A running coordinator changes what it remembers through `after` alone, so what it knows and what its store could tell
are the same thing at every instant.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, assert_never

from coordinator.machine.computation import Computation, computation_of
from coordinator.machine.records import (
    Closed,
    Delivered,
    Ended,
    HeadSigned,
    MembershipChanged,
    Record,
    SiteExcluded,
    Sites,
    Snapshot,
    StepTaken,
)
from coreg_core.agreement.schedules.schedule import FinalTargets, Progress
from coreg_core.protocol.messages import PlanAccepted
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_core.protocol.vectors import Vector


@dataclass(frozen=True)
class RunState:
    """Everything of a run that survives its process. ``computation`` and ``state`` are None before the first membership."""

    plan: Plan
    accepted: Mapping[str, PlanAccepted] = field(default_factory=dict)  # what each agreed to who ever took part
    excluded: Mapping[str, SiteExcluded] = field(default_factory=dict)
    participants: Sites = ()  # of the current attempt, in site order
    returns: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    attempt: int = 0
    question: int = 0
    computation: Computation | None = None
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
        return None if self.computation is None or self.state is None else self.computation.models(self.state)

    @property
    def progress(self) -> Progress | None:
        return None if self.computation is None or self.state is None else self.computation.progress(self.state)

    @property
    def outcome(self) -> tuple[Outcome, str] | None:
        """How the computation has ended, and what to say of it; None while it runs, and before it began."""
        return None if self.computation is None or self.state is None else self.computation.outcome(self.state)


def after(recorded: RunState, record: Record) -> RunState:
    """What a run remembers once this record is written."""
    match record:
        case SiteExcluded(site=site):
            return replace(recorded, excluded={**recorded.excluded, site: record})
        case MembershipChanged():
            computation = computation_of(recorded.plan, record.accepted, record.participants)
            return replace(
                recorded,
                accepted=record.accepted,
                participants=record.participants,
                returns=record.returns,
                dropped=record.dropped,
                attempt=record.attempt,
                question=record.question,
                computation=computation,
                state=computation.restore(record.state) if record.state else None,
                affine=record.affine,
            )
        case StepTaken():
            assert recorded.computation is not None, "a step before any membership"
            affine = recorded.computation.affine_after(recorded.affine, recorded.participants, record)
            state = recorded.computation.step(recorded.state, record)
            return replace(recorded, state=state, question=record.question + 1, affine=affine)
        case Snapshot():
            assert recorded.computation is not None, "a snapshot before any membership"
            state = recorded.computation.restore(record.state)
            return replace(recorded, state=state, question=record.question, affine=record.affine)
        case Ended():
            return replace(recorded, ended=record)
        case HeadSigned():
            return recorded  # for whoever looks later; the run takes no turn by it
        case Delivered(site=site):
            return replace(recorded, fetched=recorded.fetched | {site})
        case Closed():
            return replace(recorded, closed=True)
        case _:
            assert_never(record)


def resume(plan: Plan, records: Iterable[Record]) -> RunState:
    """What a run of this plan remembers after these records, from the first on."""
    return reduce(after, records, RunState(plan))
