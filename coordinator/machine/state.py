"""The recorded state of a run. Only a record changes it (`after`), and resuming is a fold of the records.

So the state in memory always equals the state in the store. It has no sum: the sites keep the sums, and continue from the last
one that all of them have.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import assert_never

from coordinator.machine.records import (
    AttemptBegan,
    Closed,
    Delivered,
    Ended,
    HeadSigned,
    Record,
    SiteExcluded,
    Sites,
    StepDone,
)
from coreg_core.protocol.plan import Plan


@dataclass(frozen=True)
class RunState:
    """The state of a run that survives its process. ``attempt`` is -1 before the first; ``steps`` counts over attempts."""

    plan: Plan
    excluded: Mapping[str, SiteExcluded] = field(default_factory=dict)
    participants: Sites = ()  # of the current attempt, in site order
    data: Mapping[str, str] = field(default_factory=dict)  # digests of the rows of all sites that ever took part
    returns: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    attempt: int = -1
    steps: int = 0
    ended: Ended | None = None
    fetched: frozenset[str] = frozenset()
    closed: bool = False

    @property
    def has_models(self) -> bool:
        """Whether the computation has ended, so that each participant can fetch its models."""
        return self.ended is not None and bool(self.ended.heads)


def after(recorded: RunState, record: Record) -> RunState:
    """The state after this record."""
    match record:
        case SiteExcluded(site=site):
            return replace(recorded, excluded={**recorded.excluded, site: record})
        case AttemptBegan():
            return replace(
                recorded,
                participants=record.participants,
                data=record.data,
                returns=record.returns,
                dropped=record.dropped,
                attempt=record.attempt,
                steps=record.steps,
            )
        case StepDone():
            return replace(recorded, steps=record.number + 1)
        case Ended():
            return replace(recorded, ended=record)
        case HeadSigned():
            return recorded  # evidence for audits, without effect on the run
        case Delivered(site=site):
            return replace(recorded, fetched=recorded.fetched | {site})
        case Closed():
            return replace(recorded, closed=True)
        case _:
            assert_never(record)


def resume(plan: Plan, records: Iterable[Record]) -> RunState:
    """The state of a run of this plan after these records."""
    return reduce(after, records, RunState(plan))
