"""What a site keeps of a run, so that another process of it goes on where this one was: the sums, from which all follows.

Keys are never kept. A state is named by its position (how many sums led to it) and by a digest under a key that only the
members of the run had, so the coordinator, which relays such digests, cannot test a guess of a sum.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Head, Resume

REACHABLE = 3  # states that are offered, the latest among them: two sites never differ by more than one sum


@dataclass(frozen=True, eq=False)
class Sum:
    """The opened sum of one step: vector and scalars; ``values`` is None where this site was no receiver of it."""

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
    """This site's last head of a computation that has ended, and the session keys that the others' are signed with.

    ``position``: how many sums led to the end.
    """

    head: Head
    signers: Mapping[str, str]
    position: int


@dataclass(frozen=True, eq=False)
class Kept:
    """A membership's sums from the first, with the keyed digest of the state before the first and after each.

    ``data`` tells whether the site's rows are still those that it answered with.
    """

    sites: tuple[str, ...]
    data: str
    key: bytes = field(repr=False)
    sums: tuple[Sum, ...] = ()
    digests: tuple[str, ...] = ("",)
    ended: Ended | None = None

    def with_sum(self, total: Sum) -> "Kept":
        """One sum later. Equal sums of other sites lead to another state, which has another digest."""
        text = self.digests[-1].encode() + total.digest + ",".join(self.sites).encode()
        digest = hmac.new(self.key, text, hashlib.sha256).hexdigest()
        return replace(self, sums=(*self.sums, total), digests=(*self.digests, digest))

    def upto(self, position: int) -> "Kept":
        """As it was at an earlier position."""
        return replace(self, sums=self.sums[:position], digests=self.digests[: position + 1], ended=None)

    @property
    def resume(self) -> tuple[Resume, ...]:
        """The states that this site can go on from."""
        return tuple(Resume(i, digest) for i, digest in enumerate(self.digests) if digest)[-REACHABLE:]


class RunLog(Protocol):
    """Where `Kept` is written, one sum at a time."""

    def load(self, data: str) -> Kept | None:
        """What there is for rows of that digest; None where there is nothing, or nothing that can be used."""
        ...

    def begin(self, kept: Kept) -> None:
        """Replace whatever there is."""
        ...

    def append(self, kept: Kept) -> None:
        """Write the last sum of these down, before the next answer leaves."""
        ...

    def end(self, ended: Ended) -> None:
        """The computation has ended with this head."""
        ...


@dataclass
class Memory:
    """A log of this process alone, for simulations."""

    kept: Kept | None = None

    def load(self, data: str) -> Kept | None:
        """See `RunLog.load`: another site's log serves too, since all have the same sums."""
        return None if self.kept is None else replace(self.kept, data=data)

    def begin(self, kept: Kept) -> None:
        self.kept = kept

    append = begin

    def end(self, ended: Ended) -> None:
        """See `RunLog.end`."""
        assert self.kept is not None
        self.kept = replace(self.kept, ended=ended)
