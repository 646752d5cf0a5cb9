"""When runs of standing plans begin that sites ask for.

One run of a study is under way at a time, and serves every member that asks by then. After a run
has begun, its study and the sites that asked rest for `PAUSE` seconds. So a site that asks for
studies that it invents fills no store, and one that asks without end begins two runs a second, and
stops no other site. Each of them is stored, at the sites too: the operators revoke that site.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from coordinator.machine.events import CallStanding
from coordinator.machine.records import Timeouts

PAUSE = 0.5
# Somebody waits for the answer: a site that is away is left out, or the run ends.
QUICK = Timeouts(join=0.0, plan=10.0, approval=10.0, round=10.0, stall=5.0)


@dataclass(frozen=True)
class StudyRequests:
    """The study that each site asks for, and the calls within the pause: a study, who asked."""

    waiting: Mapping[str, str] = field(default_factory=dict)
    resting: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def wish(self, site: str, study: str) -> "StudyRequests":
        return replace(self, waiting={**self.waiting, site: study})

    def rested(self, study: str) -> "StudyRequests":
        resting = {name: sites for name, sites in self.resting.items() if name != study}
        return replace(self, resting=resting)

    def call(self, computing: Collection[str]) -> "tuple[StudyRequests, list[CallStanding]]":
        """The runs that begin now; ``computing``: studies that have one under way."""
        tired = frozenset[str]().union(*self.resting.values())
        asked = {study for site, study in self.waiting.items() if site not in tired}
        calls = [
            CallStanding(study, tuple(sorted(s for s, it in self.waiting.items() if it == study)))
            for study in sorted(asked - self.resting.keys() - {*computing})
        ]
        begun = {call.study: frozenset(call.sites) for call in calls}
        left = {site: study for site, study in self.waiting.items() if study not in begun}
        return StudyRequests(left, {**self.resting, **begun}), calls
