r"""The rules on labelled rows whose second moments a site helped to open, over all runs in its life.

Sums over two sets that differ by k ≤ d rows disclose those rows' labels, so a later set is the same or differs in at least s d
rows. R runs on overlapping rows give R Σ d equations on their labels, so s Σ d ≤ N over the sets that overlap. A set that is
opened again and again averages its noise away, so it has few openings. A row is an individual, this site's label of it, and every
site's statement whether it has one. docs/concepts/privacy.md has what the attacks gain.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt64

from site_agent.site_data import keyed

Keys = UInt64[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class RowSet:
    """Labelled rows of one attempt: keyed names of the individuals, sorted, and of the rows; features in all; openings so far."""

    individuals: Keys
    rows: Keys
    features: int = 0
    openings: int = 0

    @property
    def digest(self) -> str:
        """Of the rows."""
        return hashlib.sha256(self.individuals.tobytes() + self.rows.tobytes()).hexdigest()

    def apart(self, other: "RowSet") -> int:
        """How many individuals have another row in the other set, or none."""
        _, mine, theirs = np.intersect1d(self.individuals, other.individuals, return_indices=True)
        same = int((self.rows[mine] == other.rows[theirs]).sum())
        return len(self.individuals) + len(other.individuals) - same - len(mine)

    def overlaps(self, other: "RowSet") -> bool:
        return len(np.intersect1d(self.individuals, other.individuals)) > 0


def row_set(secret: bytes, names: Sequence[bytes], labels: Mapping[int, float], told: Sequence[bytes]) -> RowSet:
    """The labelled rows among the named ones: those whose ``told`` is not empty. It says which sites have a label there.

    A row is not known by its cells: a table's preprocessing changes all of them with one row. So a set with other cells
    counts as another opening of the same set.
    """
    individuals, rows = list[bytes](), list[bytes]()
    for place, (name, flags) in enumerate(zip(names, told, strict=True)):
        if flags:
            individuals.append(keyed(secret, b"individual", name))
            rows.append(keyed(secret, b"row", name, repr(labels.get(place)).encode(), flags))
    both = [np.frombuffer(b"".join(each), dtype="<u8") for each in (individuals, rows)]
    order = np.argsort(both[0], kind="stable")
    return RowSet(both[0][order], both[1][order])


def changed_rows(now: RowSet, earlier: Iterable[RowSet], rows_per_feature: int) -> str | None:
    """The reason against a set that differs from an earlier one in too few rows, or None."""
    for known in earlier:
        apart, wanted = now.apart(known), rows_per_feature * max(now.features, known.features)
        if now.overlaps(known) and 0 < apart < wanted:
            return (
                f"{apart} labelled rows differ from those of an earlier training, and their labels would follow from the "
                f"difference of the two sums. None or at least {wanted} have to differ: train with the earlier rows, or change "
                f"{wanted - apart} more. The model of the earlier training stays."
            )
    return None


def over_budget(now: RowSet, earlier: Iterable[RowSet], rows_per_feature: int, counted: int) -> str | None:
    """The reason against more features on rows that earlier trainings used, or None. A set counts once."""
    overlapping = [known for known in earlier if known.digest != now.digest and now.overlaps(known)]
    spent = sum(known.features for known in overlapping)
    union = now.individuals
    for known in overlapping:
        union = np.union1d(union, known.individuals)
    have, wanted = max(len(union), counted), rows_per_feature * (spent + now.features)
    if not overlapping or wanted <= have:
        return None
    return (
        f"earlier trainings used {spent} features on some of these labelled rows. With {now.features} more, "
        f"rows_per_feature = {rows_per_feature} wants {wanted} labelled individuals in all, and there are {have}: label "
        f"{wanted - have} more. The models of the earlier trainings stay."
    )
