"""What this site answered, opened and scored before, rebuilt from the entries of its ledger after a restart.

Of a plan: the number of answers on a set of instances, over all runs, and the rows that a run's answers were computed from. Of
instances: the sets of sites that answers were summed with. Of labelled rows: the sets whose moments were opened. Of individuals:
the (model, sites) that scored them.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any

import numpy as np
from jaxtyping import UInt64

from coreg_core.plan import Plan
from coreg_core.secure.sums import WORD
from site_agent.site_data import PrivateData, keyed, secret_of

Keys = UInt64[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class RowSet:
    r"""Labelled rows of one attempt: keyed names of the individuals, sorted, and of the rows; features in all; openings so far.

    Sums over two sets that differ by k ≤ d rows disclose those rows' labels, so a later set is the same, or differs in s d
    rows, and s Σ d ≤ N over the sets that overlap. A set that is opened again and again averages its noise away. A row is an
    individual, this site's label of it, and every site's statement whether it has one.
    """

    individuals: Keys
    rows: Keys
    features: int = 0
    openings: int = 0

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
    secret: bytes, names: Sequence[bytes], labels: Mapping[int, float], told: Sequence[bytes]
) -> RowSet:
    """The labelled rows, where ``told`` is not empty. Other cells count as another opening: preprocessing changes all of them."""
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
                f"{apart} labelled rows differ from those of an earlier training (a label of another target counts too), and "
                f"their labels would follow from the difference of the two sums. None or at least {wanted} have to differ: train "
                f"with the earlier rows, or change {wanted - apart} more. The model of the earlier training stays."
            )
    return None


def over_budget(
    now: RowSet, earlier: Iterable[RowSet], rows_per_feature: int, counted: int
) -> str | None:
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


OF_SCORING = ("records", "scores")  # questions whose sites are counted for each individual
Pairs = UInt64[np.ndarray, "n 2"]  # an individual, and a (model, sites), by keyed digests
Terms = tuple[str, str]  # digest of a plan, and the name of its instances


@dataclass(frozen=True)
class Remembered:
    """Of a plan's answers on these instances: their number over all runs, and a digest of the rows of this run's."""

    answered: int = 0
    rows: str = ""


@dataclass(frozen=True)
class SummedWith:
    """A set of sites that an answer was summed with. ``may_change``: the plan allowed changes, so every site had agreed."""

    sites: frozenset[str]
    may_change: bool


class Memory:
    """See the module's docstring. Hold ``lock`` from reading to noting. Instances have the site's own name (`know_as`)."""

    def __init__(self, write: Callable[[dict[str, Any]], None] = lambda entry: None):  # noqa: ARG005
        self.lock = RLock()
        self._write = write
        self.approved: set[str] = set()  # runs that the operator approved
        self._terms: dict[str, Terms] = {}  # of each run, as accepted last
        self._offered: dict[str, str] = {}  # the digest of its rows
        self._rows: dict[str, str] = {}  # the same, once it was answered
        self._answered: dict[Terms, int] = {}
        self._summed: dict[str, set[SummedWith]] = {}
        self._opened: dict[str, RowSet] = {}
        self._scored: list[Pairs] = [np.zeros((0, 2), dtype=WORD)]  # merged when they are asked for
        self._known_as: dict[str, str] = {}
        self._reserved: dict[
            Terms, SummedWith
        ] = {}  # by run and instances, of runs that have not answered yet

    # --- entries --------------------------------------------------------------------------------------------------

    def add(self, entry: dict[str, Any]) -> None:
        """Remember an entry that is stored."""
        kind, run = entry.get("kind"), str(entry.get("run"))
        if kind == "Offer":
            self._terms[run] = (
                str(entry.get("plan")),
                str(entry.get("instances", entry.get("ids_digest"))),
            )
            self._offered[run] = str(entry.get("data_digest"))
        elif (
            kind == "Answer"
            and entry.get("numbers")
            and (terms := self._terms.get(run)) is not None
        ):
            self._answered[terms] = self._answered.get(terms, 0) + 1
            self._rows[run] = self._offered[run]
            if entry.get("participants") and entry.get("question") not in OF_SCORING:
                summed = SummedWith(frozenset(entry["participants"]), bool(entry.get("may_change")))
                self._summed.setdefault(terms[1], set()).add(summed)
        elif kind == "Approval" and entry.get("given"):
            self.approved.add(run)
        elif kind == "Opened":
            known = (
                self._opened[entry["again"]]
                if "again" in entry
                else RowSet(*_words(entry["rows"]).reshape(2, -1))
            )
            features = max(known.features, int(entry["features"]))
            opened = replace(known, features=features, openings=int(entry["openings"]))
            self._opened[opened.digest] = opened
        elif kind == "Scored":
            self._scored.append(_words(entry["individuals"]).reshape(-1, 2))

    def note(self, entry: dict[str, Any]) -> None:
        """Store an entry of what the next answer opens, and remember it."""
        self._write(entry)
        self.add(entry)

    def opened(self, rows: RowSet, run: str) -> None:
        both = _text(np.concatenate([rows.individuals, rows.rows]))
        which = {"again": rows.digest} if rows.digest in self._opened else {"rows": both}
        self.note(
            {
                "kind": "Opened",
                "run": run,
                "features": rows.features,
                "openings": rows.openings,
                **which,
            }
        )

    def scored(self, pairs: Pairs, run: str) -> None:
        """Note scores of these individuals that are not noted yet."""
        known = self.scores()
        known = known[np.isin(known[:, 0], pairs[:, 0])]
        _, first = np.unique(np.concatenate([known, pairs]), axis=0, return_index=True)
        fresh = pairs[np.sort(first[first >= len(known)]) - len(known)]
        if len(fresh):
            self.note({"kind": "Scored", "run": run, "individuals": _text(fresh)})

    # --- what is known --------------------------------------------------------------------------------------------

    def recall(self, plan: Plan, ids_digest: str) -> Remembered:
        """The records of this plan on the instances of that digest."""
        with self.lock:
            terms = (plan.digest, self._name(ids_digest))
            return Remembered(self._answered.get(terms, 0), self._rows.get(plan.run, ""))

    def summed_with(self, ids_digest: str) -> frozenset[SummedWith]:
        """Every set of sites that an answer on these instances was summed with, in any run of any plan."""
        with self.lock:
            return frozenset(self._summed.get(self._name(ids_digest), ()))

    def row_sets(self) -> list[RowSet]:
        return list(self._opened.values())

    def openings_of(self, rows: RowSet) -> int:
        known = self._opened.get(rows.digest)
        return 0 if known is None else known.openings

    def trainings(self, data: PrivateData) -> int:
        """The most openings of a set with all labelled individuals of these rows; others' labels can make it another set."""
        assert data.positions is not None
        at = enumerate(data.positions.tolist())
        names = [(data.ids[place] if place >= 0 else data.row_keys[i]).encode() for i, place in at]
        own = row_set(secret_of(data.salt, b"rows"), names, {}, [b"own"] * len(names)).individuals
        holding = [
            each for each in self.row_sets() if len(own) and np.isin(own, each.individuals).all()
        ]
        return max((each.openings for each in holding), default=0)

    def scores(self) -> Pairs:
        """Every individual that was scored, with each model and sites."""
        if len(self._scored) > 1:
            self._scored = [np.concatenate(self._scored)]  # an entry has no pair of an earlier one
        return self._scored[0]

    def know_as(self, ids_digest: str, instances: str) -> None:
        """Register the site's own name of the instances of a digest."""
        with self.lock:
            self._known_as[ids_digest] = instances

    def name_of(self, ids_digest: str) -> str | None:
        return self._known_as.get(ids_digest)

    def _name(self, ids_digest: str) -> str:
        return self._known_as.get(ids_digest, ids_digest)

    # --- open runs ------------------------------------------------------------------------------------------------

    def reserved(self, run: str, ids_digest: str) -> Iterable[SummedWith]:
        """The sets of sites of other open runs on these instances."""
        name = self._name(ids_digest)
        return [now for (other, ids), now in self._reserved.items() if other != run and ids == name]

    def reserve(self, run: str, ids_digest: str, now: SummedWith) -> None:
        """Promise this set of sites to a run that has not answered yet."""
        self._reserved[run, self._name(ids_digest)] = now

    def release(self, run: str) -> None:
        """Drop the promise to a run that ended: its answers are noted."""
        with self.lock:
            self._reserved = {key: now for key, now in self._reserved.items() if key[0] != run}


def _text(words: UInt64[np.ndarray, "..."]) -> str:
    return base64.b64encode(np.ascontiguousarray(words, dtype="<u8").tobytes()).decode()


def _words(text: str) -> UInt64[np.ndarray, " n"]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8")
