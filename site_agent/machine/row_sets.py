r"""The rules on labelled rows whose second moments a site helped to open, over all runs in its life.

Sums over two sets that differ by k ≤ d rows disclose those rows' labels, so a later set is the same or differs in at least s d
rows. R runs on overlapping rows give R Σ d equations on their labels, so s Σ d ≤ N over the sets that overlap. A set that is
opened again and again averages its noise away, so it has few openings. A row is an individual, this site's label of it, and every
site's statement whether it has one. docs/concepts/threat-model.md has what the attacks gain.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Protocol

import numpy as np
from jaxtyping import UInt64

from coreg_core.errors import Refused
from site_agent.machine.site_data import keyed

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


class RowSets(Protocol):
    """This site's record of opened sets, over all runs. Hold ``lock`` from reading to adding."""

    @property
    def lock(self) -> AbstractContextManager[object]: ...

    def earlier(self) -> list[RowSet]: ...

    def keep(self, opened: RowSet, run: str) -> None:
        """Record an opening before the answer leaves; an earlier record of the set is replaced."""
        ...


class InMemory:
    """Of a simulation."""

    def __init__(self) -> None:
        self._kept: dict[str, RowSet] = {}
        self.lock = RLock()

    def earlier(self) -> list[RowSet]:
        return list(self._kept.values())

    def keep(self, opened: RowSet, run: str) -> None:  # noqa: ARG002
        self._kept[opened.digest] = opened


@dataclass(frozen=True, eq=False)
class RowRules:
    """The rules with this site's record and the limit of its policy. ``may_change``: plan and policy have membership_changes.

    ``clock`` gives seconds.
    """

    record: RowSets = field(default_factory=InMemory)
    openings: int = 3
    may_change: bool = False
    clock: Callable[[], float] = lambda: 0.0

    def require(self, now: RowSet, rows_per_feature: int, counted: int) -> None:
        """Before this site's message of cross products; ``counted`` labelled individuals are used.

        Raises
        ------
        Refused
            too few rows differ from an earlier set, or earlier trainings used these rows up.
        """
        earlier = self.record.earlier()
        fault = None if self.may_change else changed_rows(now, earlier, rows_per_feature)
        fault = fault or over_budget(now, earlier, rows_per_feature, counted)
        if fault is not None:
            raise Refused(fault)

    def open(self, opened: RowSet, run: str, rows_per_feature: int, counted: int) -> None:
        """Record another opening, before the answer that opens the sums.

        Raises
        ------
        Refused
            this set had as many openings as the policy allows, or a run beside this one opened another set since `require`.
        """
        with self.record.lock:
            self.require(opened, rows_per_feature, counted)
            before = next((known.openings for known in self.record.earlier() if known.digest == opened.digest), 0)
            if before < self.openings:
                self.record.keep(replace(opened, openings=before + 1), run)
                return
        raise Refused(
            f"sums of these labelled rows were opened {before} times, and openings = {self.openings} in this site's policy: "
            "more would average out the noise. The model of an earlier run stays. New labels allow another training, or "
            "this site can raise openings."
        )


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
