"""What leaves a site with an answer: its consent judges it, its ledger keeps it, before it leaves.

The machine of a run returns a `Disclosure` beside each answer, and performs nothing itself.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from jaxtyping import UInt64

from site_agent.site_data import keyed

Keys = UInt64[np.ndarray, " n"]
Pairs = UInt64[np.ndarray, "n 2"]  # an individual, and a (model, sites), by keyed digests


@dataclass(frozen=True, eq=False)
class RowSet:
    r"""Labelled rows of one attempt: keyed names of the individuals, sorted, and of their rows.

    Sums over two sets that differ by k ≤ d rows disclose those rows' labels, so a later set is the
    same, or differs in s d rows, and s Σ d ≤ N over the sets that overlap. A set that is opened
    again and again averages its noise away. A row is an individual, this site's label of it, and
    every site's statement whether it has one.
    """

    individuals: Keys
    rows: Keys
    features: int = 0  # of a site
    openings: int = 0  # so far

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.individuals.tobytes() + self.rows.tobytes()).hexdigest()

    def apart(self, other: "RowSet") -> int:
        """How many individuals have another row in the other set, or none."""
        _, mine, theirs = np.intersect1d(self.individuals, other.individuals, return_indices=True)
        same = int((self.rows[mine] == other.rows[theirs]).sum())
        return len(self.individuals) + len(other.individuals) - same - len(mine)

    def overlaps(self, other: "RowSet") -> bool:
        return len(np.intersect1d(self.individuals, other.individuals)) > 0


def row_set(
    secret: bytes, names: Sequence[bytes], labels: Mapping[int, float], statements: Sequence[bytes]
) -> RowSet:
    """The labelled rows: those with a statement that is not empty.

    Other cells of a row count as another opening, since preprocessing changes all of them.
    """
    individuals = list[bytes]()
    rows = list[bytes]()
    for place, (name, statement) in enumerate(zip(names, statements, strict=True)):
        if statement:
            label = repr(labels.get(place)).encode()
            individuals.append(keyed(secret, b"individual", name))
            rows.append(keyed(secret, b"row", name, label, statement))
    keys = np.frombuffer(b"".join(individuals), dtype="<u8")
    order = np.argsort(keys, kind="stable")
    return RowSet(keys[order], np.frombuffer(b"".join(rows), dtype="<u8")[order])


@dataclass(frozen=True)
class Disclosure:
    """One answer as its consent and its ledger read it. One with rows or scores equals no other."""

    question: str  # its kind
    sites: tuple[str, ...]  # the members of the attempt: they read its sum or its parts
    numbers: int = 0  # in the answer
    sealed: bool = True
    may_change: bool = False  # whether the plan allows sums over other sets of sites
    # The labelled rows whose moments a training will open, and individuals with labels at all
    # sites; ``opens``: with this answer.
    rows: RowSet | None = None
    labelled: int = 0
    opens: bool = False
    scores: Pairs | None = None  # the individuals that others read scores of
    # Of a standing plan: how many individuals each other site asks for.
    asked: tuple[tuple[str, int], ...] = ()
    within: float = inf  # seconds since the attempt's first answer: a later one is not sent
