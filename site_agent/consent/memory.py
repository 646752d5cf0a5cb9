"""What this site answered, opened and scored before, rebuilt from its ledger after a restart.

Of a plan: the number of answers on a set of instances, over all runs, and the rows that a run's
answers were computed from. Of instances: the sets of sites that answers were summed with. Of
labelled rows: the sets whose moments were opened. Of individuals: the (model, sites) that scored
them.
"""

import base64
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import UInt64

from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan, is_on_demand
from coreg_core.secure.sums import WORD
from site_agent.disclosure import Disclosure, Pairs, RowSet, row_set
from site_agent.site_data import PrivateData, keyed, secret_of

Entry: TypeAlias = dict[str, Any]  # of the ledger: what a line says, as JSON has it
GOOD = {outcome.name for outcome in Outcome if outcome.good}
DAY = len("2026-11-30")  # of a time, its first characters
OF_SCORING = ("asked", "records", "scores")  # questions whose sites are counted for each individual


class _Offered(NamedTuple):
    """What a run offered last: digest of its plan, name of its instances, digest of its rows."""

    plan: str
    instances: str
    rows: str


@dataclass(frozen=True)
class SummedWith:
    """A set of sites that an answer was summed with.

    ``may_change``: the plan allowed changes, so every site had agreed.
    """

    sites: frozenset[str]
    may_change: bool


class Memory:
    """See the module's docstring. Hold ``lock`` from judging to noting.

    Instances have the site's own name (`know_as`), which does not leave it.
    """

    def __init__(self, write: Callable[[Entry], Entry] = lambda entry: entry):
        self.lock = RLock()
        self._write = write
        # Runs that the operator approved, each with the digest of its plan.
        self.approved: set[tuple[str, str]] = set()
        self.finished: dict[str, str] = {}  # digests of the plans of runs with a good end, by run
        self.deciding: dict[str, str] = {}  # the plan of a run's last decision, for its line
        self._offered_on = Counter[tuple[str, bool]]()  # by day, and whether a site asked for it
        self._offers: dict[str, _Offered] = {}  # by run
        self._rows: dict[str, str] = {}  # the digest of a run's rows, once it was answered
        self._answered = Counter[tuple[str, str]]()  # by plan and instances
        self._summed = defaultdict[str, set[SummedWith]](set)  # by instances
        self._opened: dict[str, RowSet] = {}
        self._opened_in: set[tuple[str, str]] = set()  # a run, and the digest of a row set
        self._scored: list[Pairs] = [np.zeros((0, 2), dtype=WORD)]  # merged when they are asked for
        self._asked = Counter[tuple[str, str]]()  # by day and site
        self._known_as: dict[str, str] = {}
        self._reserved: dict[tuple[str, str], SummedWith] = {}  # by run and instances

    # --- entries --------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Remember an entry that is stored."""
        run = str(entry.get("run"))
        match entry.get("kind"):
            case "Offer":
                instances = str(entry.get("instances", entry.get("ids_digest")))
                rows = str(entry.get("data_digest"))
                self._offers[run] = _Offered(str(entry.get("plan")), instances, rows)
                self._offered_on[str(entry.get("at"))[:DAY], is_on_demand(run)] += 1
            case "Answer" if entry.get("numbers"):
                self._add_answer(run, entry)
            case "Approval" if entry.get("given"):
                self.approved.add((run, str(entry.get("plan"))))
            case "Fetched" if run in self._offers:
                self._end(run, good=entry.get("outcome") in GOOD)
            case "Opened":
                self._add_opened(run, entry)
            case "Scored":
                self._scored.append(_words(entry["individuals"]).reshape(-1, 2))
            case "Asked":
                self._asked[str(entry["day"]), str(entry["by"])] += int(entry["individuals"])
            case _:  # it says nothing of what was answered
                pass

    def _end(self, run: str, *, good: bool) -> None:
        """Keep of an ended run what can count again."""
        if good and is_on_demand(run):  # its name comes once
            self._rows.pop(run, None)
        elif good:
            self.finished[run] = self._offers[run].plan
        if good or run not in self._rows:  # else it can be continued
            del self._offers[run]

    def _add_answer(self, run: str, entry: Entry) -> None:
        if run not in self._offers:
            return
        plan, instances, self._rows[run] = self._offers[run]
        self._answered[plan, instances] += 1
        if entry.get("participants") and entry.get("question") not in OF_SCORING:
            sites = frozenset(entry["participants"])
            self._summed[instances].add(SummedWith(sites, bool(entry.get("may_change"))))

    def _add_opened(self, run: str, entry: Entry) -> None:
        again = entry.get("again")
        rows = self._opened[again] if again else RowSet(*_words(entry["rows"]).reshape(2, -1))
        features = max(rows.features, int(entry["features"]))
        opened = replace(rows, features=features, openings=int(entry["openings"]))
        self._opened[opened.digest] = opened
        self._opened_in.add((run, opened.digest))

    def note(self, entry: Entry) -> None:
        """Store an entry, and remember it."""
        self.add(self._write(entry))

    def note_disclosure(self, run: str, disclosure: Disclosure, day: str = "") -> None:
        """What an answer opens, and what it tells of individuals, before the answer's own line."""
        for site, count in disclosure.asked:
            self.note({"kind": "Asked", "run": run, "by": site, "individuals": count, "day": day})
        if disclosure.opens and disclosure.rows is not None:
            self._note_opening(disclosure.rows, run)
        if disclosure.scores is not None:
            self._note_scores(disclosure.scores, run)

    def note_decision(self, plan: Plan, about: Entry) -> None:
        """A person's decision on a plan: who, when, and what was shown."""
        with self.lock:
            self.note({"kind": "Decided", "run": plan.run, "plan": plan.digest, **about})

    def _note_opening(self, rows: RowSet, run: str) -> None:
        entry = {"kind": "Opened", "run": run, "features": rows.features}
        entry["openings"] = self.openings_of(rows) + 1
        if rows.digest in self._opened:
            entry["again"] = rows.digest
        else:
            entry["rows"] = _text(np.concatenate([rows.individuals, rows.rows]))
        self.note(entry)

    def _note_scores(self, pairs: Pairs, run: str) -> None:
        """Note scores of these individuals that are not noted yet."""
        noted = self.scores()
        noted = noted[np.isin(noted[:, 0], pairs[:, 0])]
        _, first = np.unique(np.concatenate([noted, pairs]), axis=0, return_index=True)
        fresh = pairs[np.sort(first[first >= len(noted)]) - len(noted)]
        if len(fresh):
            self.note({"kind": "Scored", "run": run, "individuals": _text(fresh)})

    # --- what is known --------------------------------------------------------------------------

    def answered(self, plan: Plan, ids_digest: str) -> int:
        """The number of answers to this plan on these instances, over all runs."""
        with self.lock:
            return self._answered[plan.digest, self._name(ids_digest)]

    def rows_of(self, run: str) -> str:
        """The digest of the rows that answers of this run were computed from; "" without one."""
        with self.lock:
            return self._rows.get(run, "")

    def summed_with(self, ids_digest: str) -> frozenset[SummedWith]:
        """Every set of sites that an answer on these instances was summed with, in any run."""
        with self.lock:
            return frozenset(self._summed.get(self._name(ids_digest), ()))

    def row_sets(self) -> list[RowSet]:
        return list(self._opened.values())

    def openings_of(self, rows: RowSet) -> int:
        return self._opened.get(rows.digest, rows).openings

    def opened_in(self, run: str, rows: RowSet) -> bool:
        """Whether an answer of that run opened sums of these rows."""
        return (run, rows.digest) in self._opened_in

    def trainings(self, data: PrivateData | None) -> int:
        """The most openings of a set with all labelled individuals of these rows.

        Others' labels can make it another set. ``data``: None before an alignment, which finds the
        individuals: then of any set.
        """
        sets = self.row_sets()
        if data is not None:
            assert data.positions is not None
            names = [
                (data.ids[place] if place >= 0 else data.row_keys[i]).encode()
                for i, place in enumerate(data.positions.tolist())
            ]
            secret = secret_of(data.salt, b"rows")
            own = row_set(secret, names, {}, [b"own"] * len(names)).individuals
            sets = [rows for rows in sets if len(own) and np.isin(own, rows.individuals).all()]
        return max((rows.openings for rows in sets), default=0)

    def lost_rows(self, data: PrivateData) -> int:
        """Of the labelled individuals of an earlier training with some of these rows, how many are
        not among these any more: the most of all such trainings.
        """
        names = [name.encode() for name in (*data.ids, *data.row_keys)]
        secret = secret_of(data.salt, b"rows")
        here = row_set(secret, names, {}, [b"here"] * len(names)).individuals
        lost = [~np.isin(rows.individuals, here) for rows in self.row_sets()]
        return max((int(rows.sum()) for rows in lost if not rows.all()), default=0)

    def asked(self, site: str, day: str) -> int:
        """How many individuals that site has asked the scores of on that day."""
        return self._asked[day, site]

    @property
    def agreed(self) -> set[str]:
        """The digests of the plans that the operator approved in some run."""
        return {digest for _, digest in self.approved}

    def offered_on(self, day: str, *, on_demand: bool) -> int:
        """How often this site offered to take part in a run on that day: in runs that a site asked
        for, or in others.
        """
        return self._offered_on[day, on_demand]

    def scores(self) -> Pairs:
        """Every individual that was scored, with each model and sites."""
        if len(self._scored) > 1:  # an entry has no pair of an earlier one
            self._scored = [np.concatenate(self._scored)]
        return self._scored[0]

    def most_models(self, data: PrivateData) -> int:
        """The most models, or sets of sites, that scored one of these shared individuals."""
        keys = b"".join(keyed(data.salt, b"scored", name.encode()) for name in data.ids)
        pairs = self.scores()
        mine = pairs[np.isin(pairs[:, 0], np.frombuffer(keys, dtype=WORD))]
        _, models = np.unique(mine[:, 0], return_counts=True)
        return int(models.max(initial=0))

    def know_as(self, ids_digest: str, instances: str) -> None:
        """Register the site's own name of the instances of a digest."""
        with self.lock:
            self._known_as[ids_digest] = instances

    def name_of(self, ids_digest: str) -> str | None:
        return self._known_as.get(ids_digest)

    def _name(self, ids_digest: str) -> str:
        return self._known_as.get(ids_digest, ids_digest)

    # --- open runs ------------------------------------------------------------------------------

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
            kept = {key: now for key, now in self._reserved.items() if key[0] != run}
            self._reserved = kept
            self.deciding.pop(run, None)


def _text(words: UInt64[np.ndarray, "..."]) -> str:
    return base64.b64encode(np.ascontiguousarray(words, dtype="<u8").tobytes()).decode()


def _words(text: str) -> UInt64[np.ndarray, " n"]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8")
