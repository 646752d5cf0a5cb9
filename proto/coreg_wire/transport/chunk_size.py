"""How large the pieces of a vector are: small on a link of which nothing is known, large on one that has shown what it carries.

A large piece costs its ends little more than a small one, so that a vector in large pieces takes half the work; small ones are
seen to come on a slow link. What is known of a link is the time from when a vector began to go out until the other end said the
next thing about its run, which it does only once it has all of it: buffers cannot make a link look faster than it is, and a site
that computes for long only makes it look slower, where nobody waits for the link. What is said before all of the vector went out
is about something else, and nothing is learnt from it. There are two sizes, so that a question is encoded twice at most. Knows
bytes and seconds; the clock is the caller's.
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
    """Of one direction of one stream; its vectors of several runs share it."""

    def __init__(self) -> None:
        self.piece = SMALLEST_PIECE
        self._gone: dict[str, _Gone] = {}

    def goes(self, run: str, size: int, now: float) -> None:
        """So many bytes of that run's begin to go out."""
        if size >= SMALLEST_PIECE:
            self._gone[run] = _Gone(size, now)

    def whole(self, run: str) -> None:
        """The last of them goes, or went."""
        if run in self._gone:
            self._gone[run].whole = True

    def answered(self, run: str, now: float) -> None:
        """The other end says something about that run."""
        if (gone := self._gone.pop(run, None)) is not None and gone.whole:
            self.piece = piece_at(gone.size / max(now - gone.since, 1e-6))

    def forget(self, run: str) -> None:
        self._gone.pop(run, None)


def piece_at(rate: float) -> int:
    """The largest piece where it takes half a second at most at so many bytes a second, and otherwise the smallest."""
    return LARGEST_PIECE if SECONDS_A_PIECE * rate >= LARGEST_PIECE else SMALLEST_PIECE
