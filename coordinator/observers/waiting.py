"""The sites that a run waits for, and for how long, as its notices show it."""

import time
from collections.abc import Callable
from math import inf, isinf

from coordinator.machine import notices as n

_FACTOR, _APPROVE = "to check the plan and factor their data", "to approve the plan"


class Waiting:
    """The awaited sites; none once steps are answered."""

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
                self._begin(notice.sites, _FACTOR, notice.seconds)
            case n.Stalled():
                self._begin(notice.sites, "to reconnect", notice.seconds)
            case n.ApprovalAwaited():
                self._begin(notice.sites, _APPROVE, notice.seconds)
            case n.Approved():
                self._begin((notice.site,), _FACTOR)
            case n.Joined() | n.PlanAcceptedBy() | n.SiteDismissed():
                if isinstance(notice, n.PlanAcceptedBy) or self._what not in (_FACTOR, _APPROVE):
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
        """One sentence; empty if the run waits for no site."""
        if not self._sites:
            return ""
        limit = "" if isinf(self._limit) else f" of {self._limit:.0f}"
        names, passed = ", ".join(self._sites), self._clock() - self._since
        waited = f"approval by {names}" if self._what == _APPROVE else f"{names} {self._what}"
        return f"waiting for {waited}: {passed:.0f}{limit} s"
