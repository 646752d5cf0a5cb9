"""When runs of standing plans begin that sites ask for.

One run of a study is under way at a time, and serves every member that asks by then. The next one
begins `PAUSE` seconds later at the earliest. So a site that asks without end fills no store, and
stops no other site: that one is served by the next run.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from coordinator.machine.events import CallStanding
from coordinator.machine.records import Timeouts

PAUSE = 0.5
MOST_STUDIES = 64  # that are called within the pause: a site can invent names
# Somebody waits for the answer: a site that is away is left out, or the run ends.
QUICK = Timeouts(join=0.0, plan=10.0, approval=10.0, round=10.0, stall=5.0)


@dataclass(frozen=True)
class Wishes:
    """Sites that ask, by study, and studies of which a run was begun within the pause."""

    waiting: Mapping[str, frozenset[str]] = field(default_factory=dict)
    resting: frozenset[str] = frozenset()

    def wish(self, site: str, study: str) -> "Wishes":
        if len(self.resting | self.waiting.keys()) >= MOST_STUDIES:
            return self
        sites = self.waiting.get(study, frozenset()) | {site}
        return replace(self, waiting={**self.waiting, study: sites})

    def rested(self, study: str) -> "Wishes":
        return replace(self, resting=self.resting - {study})

    def call(self, computing: Collection[str]) -> "tuple[Wishes, list[CallStanding]]":
        """The runs that begin now; ``computing``: studies that have one under way."""
        calls = [
            CallStanding(study, tuple(sorted(sites)))
            for study, sites in sorted(self.waiting.items())
            if study not in self.resting and study not in computing
        ]
        begun = {call.study for call in calls}
        left = {study: sites for study, sites in self.waiting.items() if study not in begun}
        return Wishes(left, self.resting | begun), calls
