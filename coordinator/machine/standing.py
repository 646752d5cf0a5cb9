"""When runs of standing plans begin that sites ask for.

One run of a study is under way at a time, and serves every member that asks by then. After a run
has begun, its study and the sites that asked rest for `PAUSE` seconds, and after each run without a
good end for twice as long, up to `LONGEST_PAUSE`. Each run is stored, also at the sites, so a site
begins at most `MOST_RUNS` within `DAY`; then its request waits. So a site that asks without end
stops no other site and fills no store.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from coordinator.machine.events import CallStanding
from coordinator.machine.records import Timeouts
from coreg_core.plan import MOST_RUNS

PAUSE = 0.5
LONGEST_PAUSE = 60.0
DAY = 86_400.0
# Somebody waits for the answer: a site that is away is left out, or the run ends.
QUICK = Timeouts(join=0.0, plan=10.0, approval=10.0, round=10.0, stall=5.0)


@dataclass(frozen=True)
class StudyRequests:
    """The study that each site asks for, the calls within the pause (a study, who asked), and the
    number of calls of each site within a day.
    """

    waiting: Mapping[str, str] = field(default_factory=dict)
    resting: Mapping[str, frozenset[str]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])  # runs in a row, by study

    def wish(self, site: str, study: str) -> "StudyRequests":
        return replace(self, waiting={**self.waiting, site: study})

    def ended(self, study: str, *, good: bool) -> "StudyRequests":
        """A run of the study is over."""
        failed = Counter(self.failed)
        failed[study] += 1
        if good:
            del failed[study]
        return replace(self, failed=failed)

    def rested(self, study: str) -> "StudyRequests":
        resting = {name: sites for name, sites in self.resting.items() if name != study}
        return replace(self, resting=resting)

    def forgotten(self, sites: Collection[str]) -> "StudyRequests":
        """A day has passed since these sites asked for a run."""
        return replace(self, calls=self.calls - Counter(sites))

    def call(self, computing: Collection[str]) -> "tuple[StudyRequests, list[CallStanding]]":
        """The runs that begin now; ``computing``: studies that have one under way."""
        tired = self._tired()
        asked = {study for site, study in self.waiting.items() if site not in tired}
        calls = [
            CallStanding(study, self._askers(study), self._pause(study))
            for study in sorted(asked - self.resting.keys() - {*computing})
        ]
        begun = {call.study: frozenset(call.sites) for call in calls}
        left = {site: study for site, study in self.waiting.items() if study not in begun}
        count = self.calls + Counter(site for call in calls for site in call.sites)
        resting = {**self.resting, **begun}
        return replace(self, waiting=left, resting=resting, calls=count), calls

    def _askers(self, study: str) -> tuple[str, ...]:
        return tuple(sorted(site for site, wish in self.waiting.items() if wish == study))

    def _pause(self, study: str) -> float:
        return min(PAUSE * 2.0 ** min(self.failed[study], 10), LONGEST_PAUSE)

    def _tired(self) -> set[str]:
        """The sites that begin no run now."""
        spent = {site for site, calls in self.calls.items() if calls >= MOST_RUNS}
        return spent.union(*self.resting.values())
