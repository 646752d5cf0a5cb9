"""For whom a run waits before its first question, and for how long: read off its notices."""

import time
from collections.abc import Callable
from math import inf, isinf

from coordinator.machine import notices as n


class Waiting:
    """Sites that are still to come, or to accept the plan; empty once questions are answered."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._since = clock, clock()
        self._sites: dict[str, None] = {}
        self._what, self._limit = "", inf

    def notice(self, notice: n.Notice) -> None:
        match notice:
            case n.RunBegan() | n.RunTakenUp():
                self._begin(notice.awaited, "to connect", notice.seconds)
            case n.DeliveryTakenUp():
                self._begin(notice.awaited, "to fetch their models", notice.seconds)
            case n.PlanSent():
                self._begin(notice.sites, "to check the plan and factor their data", notice.seconds)
            case n.Stalled():
                self._begin(notice.sites, "to come back", notice.seconds)
            case n.Joined() | n.PlanAcceptedBy() | n.SiteDismissed():
                if isinstance(notice, n.PlanAcceptedBy) or self._what != "to check the plan and factor their data":
                    self._sites.pop(notice.site, None)
            case n.StepAnswered() | n.RunEnded():
                self._begin((), "")
            case _:
                pass

    def _begin(self, sites: tuple[str, ...], what: str, limit: float = inf) -> None:
        self._limit = limit
        self._sites, self._what, self._since = dict.fromkeys(sites), what, self._clock()

    @property
    def said(self) -> str:
        """In words; empty where nobody is awaited."""
        if not self._sites:
            return ""
        limit = "" if isinf(self._limit) else f" of {self._limit:.0f}"
        return f"waiting for {', '.join(self._sites)} {self._what}: {self._clock() - self._since:.0f}{limit} s"
