"""A peer that does the same again and again: its notices are counted, and told once a minute.

Otherwise a revoked certificate, which opens hundreds of sessions a second, would fill the log and
replace every stored notice. The metrics count each of them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from coordinator.machine.notices import NoticeName
from coreg_core.outcomes import Notice

WINDOW = 60.0  # seconds
BURST = 5  # alike in a window that are passed on

_BY_PEERS = (NoticeName.ACCESS_DENIED, NoticeName.ENROLMENT_REFUSED, NoticeName.ENROLMENT_BUSY)
_Kind: TypeAlias = tuple[str, str, str]  # name, run, and the peer


@dataclass
class _Seen:
    """The notices of one kind since ``since``."""

    since: float
    last: Notice
    times: int = 0


class Floods:
    """Which notices to pass on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self.seen: dict[_Kind, _Seen] = {}

    def passes(self, notice: Notice) -> bool:
        """Count the notice; whether it is one of the first of its kind in the window."""
        kind = _kind_of(notice)
        if kind is None:
            return True
        seen = self.seen.setdefault(kind, _Seen(self._clock(), notice))
        seen.last = notice
        seen.times += 1
        return seen.times <= BURST

    def over(self) -> list[Notice]:
        """The windows that are over: a sentence for each in which notices were held back."""
        now = self._clock()
        ended = {kind: seen for kind, seen in self.seen.items() if now - seen.since >= WINDOW}
        for kind in ended:
            del self.seen[kind]
        return [_repeated(seen) for seen in ended.values() if seen.times > BURST]


def _kind_of(notice: Notice) -> _Kind | None:
    """None for a notice that no peer causes."""
    peer = notice.site or str(notice.fields.get("name", ""))
    by_a_peer = peer or notice.name in _BY_PEERS
    repeated = notice.name == NoticeName.REPEATED
    if by_a_peer and not repeated:
        return (notice.name, notice.run, peer)
    return None


def _repeated(seen: _Seen) -> Notice:
    more = seen.times - BURST
    text = f"{more} more within {WINDOW:.0f} s like this one: {seen.last.text}"
    fields = {"times": more, "of": seen.last.name}
    return replace(seen.last, name=NoticeName.REPEATED, text=text, level="warning", fields=fields)
