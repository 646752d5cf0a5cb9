"""The size of the pieces of a vector: small on an unknown or slow link, large on a link that was measured as fast.

Large pieces halve the work of both ends. Small pieces show progress on a slow link. The measured time runs from the start of a
vector to the next message of the other end about the same run, which it sends only after the whole vector. So buffers cannot
make a link look faster. A long computation makes it look slower, which is harmless. A message that arrives before the vector was
sent completely is about something else and is ignored. There are two sizes, so that a question is encoded at most twice. The
caller passes the time.
"""

from dataclasses import dataclass

from coreg_wire.transport.codec import LARGEST_PIECE, SMALLEST_PIECE

SECONDS_A_PIECE = 0.5


@dataclass
class _Gone:
    size: int
    since: float
    whole: bool = False


class Pace:
    """The piece size of one direction of one stream, for the vectors of all runs."""

    def __init__(self) -> None:
        self.piece = SMALLEST_PIECE
        self._gone: dict[str, _Gone] = {}

    def goes(self, run: str, size: int, now: float) -> None:
        """A vector of ``size`` bytes of the run starts."""
        if size >= SMALLEST_PIECE:
            self._gone[run] = _Gone(size, now)

    def whole(self, run: str) -> None:
        """The vector was sent completely."""
        if run in self._gone:
            self._gone[run].whole = True

    def answered(self, run: str, now: float) -> None:
        """The other end sent a message about the run."""
        if (gone := self._gone.pop(run, None)) is not None and gone.whole:
            self.piece = piece_at(gone.size / max(now - gone.since, 1e-6))

    def forget(self, run: str) -> None:
        self._gone.pop(run, None)


def piece_at(rate: float) -> int:
    """The largest piece if it takes at most 0.5 s at ``rate`` bytes per second, otherwise the smallest."""
    return LARGEST_PIECE if SECONDS_A_PIECE * rate >= LARGEST_PIECE else SMALLEST_PIECE
