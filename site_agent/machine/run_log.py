"""A site's record of a run, from which a later process resumes: the opened sums, which determine every state.

Keys are never stored. A state has a position (the number of sums before it) and a digest under a key of the run's
members. The coordinator forwards such digests, and without the key it cannot test a guess of a sum.
"""

import hashlib
import hmac
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Head, Resume

REACHABLE = 3  # the number of latest states in an offer: two sites never differ by more than one sum


class Total(Protocol):
    """The opened sum of one step: vectors and scalars; ``values`` is None if this site was not a receiver."""

    @property
    def values(self) -> Arr | None: ...

    @property
    def scalars(self) -> tuple[float, ...]: ...

    @property
    def digest(self) -> bytes:
        """SHA-256 of its numbers."""
        ...


@dataclass(frozen=True, eq=False)
class Sum:
    """`Total` in memory."""

    values: Arr | None
    scalars: tuple[float, ...]

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of its numbers."""
        digest = hashlib.sha256(np.array(self.scalars).tobytes())
        if self.values is not None:
            digest.update(np.ascontiguousarray(self.values).data.cast("B") if self.values.size else b"")
        return digest.digest()


@dataclass(frozen=True)
class Ended:
    """This site's last head of a computation that ended, and its sites.

    ``position``: the number of sums before the end.
    """

    head: Head
    sites: tuple[str, ...]
    position: int


@dataclass(frozen=True, eq=False)
class Kept:
    """A membership's sums from the first, with the keyed digest of the state before the first and after each.

    ``data`` is the digest of the rows that the site answered with: it detects changes.
    """

    sites: tuple[str, ...]
    data: str
    key: bytes = field(repr=False)
    sums: tuple[Total, ...] = ()
    digests: tuple[str, ...] = ("",)
    ended: Ended | None = None

    def with_sum(self, total: Total) -> "Kept":
        """A copy with one more sum. The digest covers the sites: equal sums of other sites give another state."""
        text = self.digests[-1].encode() + total.digest + ",".join(self.sites).encode()
        digest = hmac.new(self.key, text, hashlib.sha256).hexdigest()
        return replace(self, sums=(*self.sums, total), digests=(*self.digests, digest))

    def upto(self, position: int) -> "Kept":
        """A copy at an earlier position."""
        return replace(self, sums=self.sums[:position], digests=self.digests[: position + 1], ended=None)

    @property
    def resume(self) -> tuple[Resume, ...]:
        """The states from which this site can resume."""
        return tuple(Resume(i, digest) for i, digest in enumerate(self.digests) if digest)[-REACHABLE:]


class RunLog(Protocol):
    """Storage of `Kept`, one sum at a time."""

    def load(self, data: str) -> Kept | None:
        """The record for rows of that digest; None if there is none that is usable."""
        ...

    def begin(self, kept: Kept) -> None:
        """Replace the record."""
        ...

    def append(self, kept: Kept) -> Kept:
        """Store the last sum, before the next answer leaves. Returns the record; a log on a disk keeps no vector in memory."""
        ...

    def end(self, ended: Ended) -> None:
        """Record that the computation ended with this head."""
        ...


@dataclass
class Memory:
    """A log in memory, for simulations."""

    kept: Kept | None = None

    def load(self, data: str) -> Kept | None:
        """See `RunLog.load`. Another site's log is as good, since all have the same sums."""
        return None if self.kept is None else replace(self.kept, data=data)

    def begin(self, kept: Kept) -> None:
        self.kept = kept

    def append(self, kept: Kept) -> Kept:
        self.kept = kept
        return kept

    def end(self, ended: Ended) -> None:
        """See `RunLog.end`."""
        assert self.kept is not None
        self.kept = replace(self.kept, ended=ended)
