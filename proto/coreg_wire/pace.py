"""How large the pieces of a vector are: small on a link of which nothing is known, large on one that has shown what it carries.

A large piece costs its ends little more than a small one, so that a vector in large pieces takes half the work; small ones are
seen to come on a slow link. What is known of a link is the time from when a vector began to go out until the other end said the
next thing about its run, which it does only once it has all of it: buffers cannot make a link look faster than it is, and a site
that computes for long only makes it look slower, where nobody waits for the link. Knows bytes and seconds; the clock is the
caller's.
"""

from coreg_wire.codec import LARGEST_PIECE, SMALLEST_PIECE

SECONDS_A_PIECE = 0.5


class Pace:
    """Of one direction of one stream; its vectors of several runs share it."""

    def __init__(self) -> None:
        self.piece = SMALLEST_PIECE
        self._gone: dict[str, tuple[int, float]] = {}

    def goes(self, run: str, size: int, now: float) -> None:
        """So many bytes of that run's begin to go out."""
        if size >= SMALLEST_PIECE:
            self._gone[run] = (size, now)

    def answered(self, run: str, now: float) -> None:
        """The other end says something about that run."""
        if (gone := self._gone.pop(run, None)) is not None:
            size, since = gone
            self.piece = piece_at(size / max(now - since, 1e-6))

    def forget(self, run: str) -> None:
        """It is over."""
        self._gone.pop(run, None)


def piece_at(rate: float) -> int:
    """The largest power of two that takes half a second at so many bytes a second, between the smallest and the largest piece."""
    piece = LARGEST_PIECE
    while piece > SMALLEST_PIECE and piece > SECONDS_A_PIECE * rate:
        piece //= 2
    return piece
