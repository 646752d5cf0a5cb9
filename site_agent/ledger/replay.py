"""What the ledger's lines say of a site's answers, so that a restart forgets none of it: a fold of the entries, one by
one.

How many answers a plan got on a set of instances, over all its runs; which questions of a run were answered, and which
could become its result; whom answers were summed with; which groups of labels went out. A file that goes on from
another carries all of it on its first line (`to_json`), but of the runs that are long over the questions one by one:
these are looked up where they stand.
"""

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from coreg_core.additive.model.grouping import Group
from coreg_core.additive.model.terms import Residuals
from coreg_core.additive.site_state import SiteMemory
from coreg_core.agreement.columns import Column
from coreg_core.errors import StorageError
from coreg_core.protocol.plan import Additive, Plan
from site_agent.ledger.files import CONTINUED, entry_of, opened, read_lines, readable
from site_agent.ledger.quota import ANSWERS
from site_agent.machine.differencing import SummedWith
from site_agent.machine.memory import Number, Remembered, Verified
from site_agent.machine.training import digest_of

_VERSION = 2  # of what a first line carries
# Of so many runs, those with the latest lines, every question is known without looking; and of so many whether there were any.
KNOWN_WHOLE, KNOWN = 16, 4096


class _Run:
    """The answers to one run, under one plan and on one set of instances."""

    def __init__(self) -> None:
        self.asked: dict[Number, str] = {}
        self.verified: tuple[Verified, ...] = ()
        self.kept: dict[str, Any] | None = None
        self.participants: tuple[str, ...] = ()

    def add(self, entry: dict[str, Any]) -> None:
        if "question_kind" in entry:
            verified = Verified(entry["target"], ()) if entry["question_kind"] == "MODEL" else None
            digest = str(entry["asked"])
            self.kept = entry.get("kept")
        elif "columns" in entry:
            columns = tuple(Column(*column) for column in entry["columns"])
            verified = Verified(entry["target"], columns) if entry["is_candidate"] else None
            digest = digest_of(entry["part"], entry["target"], columns)
        else:
            return  # of what was asked nothing is known
        number = (entry["question"], entry["attempt"])
        if verified is not None and number not in self.asked and self.verified[-1:] != (verified,):
            self.verified = (*self.verified, verified)[-2:]
        self.asked[number] = digest
        self.participants = tuple(entry.get("participants", ()))

    def to_json(self) -> dict[str, Any]:
        verified = [[v.targets, [[c.coupling, c.weight] for c in v.columns]] for v in self.verified]
        asked = [[*number, digest] for number, digest in self.asked.items()]
        return {"asked": asked, "verified": verified, "kept": self.kept, "participants": list(self.participants)}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "_Run":
        run = cls()
        run.asked = {(question, attempt): digest for question, attempt, digest in plain["asked"]}
        run.verified = tuple(Verified(t, tuple(Column(*c) for c in columns)) for t, columns in plain["verified"])
        run.kept, run.participants = plain["kept"], tuple(plain["participants"])
        return run


KnownAs = tuple[str, ...]  # digests under which a site's instances went out, and its own name of them
Terms = tuple[str, str]  # digest of a plan, and the name of its instances


class Memory:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._named: dict[str, str] = {}  # this site's own name of the instances of a digest that went out
        self._terms: dict[str, Terms] = {}  # of each run, as it was accepted last; the latest at the end
        self._runs: dict[tuple[str, Terms], _Run] = {}  # the latest at the end
        self._answered: dict[Terms, int] = {}
        self._groups: set[Group] = set()
        self._summed: dict[str, set[SummedWith]] = {}

    def add(self, entry: dict[str, Any]) -> None:
        kind, run = entry.get("kind"), str(entry.get("run"))
        self._groups.update(tuple(group) for group in entry.get("groups", ()))
        if kind == "PlanAccepted":
            digest = str(entry.get("ids_digest"))
            if "instances" in entry:
                self._unite(digest, str(entry["instances"]))
            self._terms.pop(run, None)
            self._terms[run] = (str(entry.get("plan")), self._name(digest))
            _shorten(self._terms, KNOWN)
        elif kind in ANSWERS and (terms := self._terms.get(run)) is not None:
            self._answered[terms] = self._answered.get(terms, 0) + 1
            known = self._runs.pop((run, terms), None) or _Run()
            known.add(entry)
            self._runs[run, terms] = known
            _shorten(self._runs, KNOWN_WHOLE)
            if kind == "Masked":
                summed = SummedWith(frozenset(entry.get("participants", ())), bool(entry.get("may_change")))
                self._summed.setdefault(terms[1], set()).add(summed)

    def _name(self, digest: str) -> str:
        return self._named.get(digest, digest)

    def _unite(self, digest: str, name: str) -> None:
        """From now on these instances have that name, and what was known of them under another one is known under this."""
        before = self._name(digest)
        if before == name:
            return
        self._named = {known: name if now == before else now for known, now in self._named.items()} | {digest: name}

        def renamed(terms: Terms) -> Terms:
            return (terms[0], name) if terms[1] == before else terms

        self._terms = {run: renamed(terms) for run, terms in self._terms.items()}
        self._runs = {(run, renamed(terms)): known for (run, terms), known in self._runs.items()}
        answered, self._answered = self._answered, {}
        for terms, count in answered.items():
            self._answered[renamed(terms)] = self._answered.get(renamed(terms), 0) + count
        if before in self._summed:
            self._summed.setdefault(name, set()).update(self._summed.pop(before))

    def _names(self, known_as: KnownAs) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._name(digest) for digest in known_as))

    def has_whole(self, plan: Plan, known_as: KnownAs) -> bool:
        """Whether all is known here of the questions of this run; otherwise they stand in the files alone."""
        found = (self._runs.get((plan.run, (plan.digest, name))) for name in self._names(known_as))
        return plan.run not in self._terms or any(found)

    def recall(self, plan: Plan, known_as: KnownAs) -> Remembered:
        """What is known of this plan on these instances, under any of these names, and of this run of it."""
        terms = [(plan.digest, name) for name in self._names(known_as)]
        run = next((known for each in terms if (known := self._runs.get((plan.run, each)))), None) or _Run()
        mine: Residuals = plan.objective.residuals if isinstance(plan.objective, Additive) else "smoothed"
        return Remembered(
            answered=sum(self._answered.get(each, 0) for each in terms),
            asked=dict(run.asked),
            verified=run.verified,
            kept=None if run.kept is None else SiteMemory.from_json(run.kept),
            groups=frozenset(self._groups),
            residuals=mine,
            participants=run.participants,
        )

    def summed_with(self, known_as: KnownAs) -> frozenset[SummedWith]:
        """Every set of sites whose sum an answer on these instances went into, in any run of any plan."""
        return frozenset[SummedWith]().union(*(self._summed.get(name, ()) for name in self._names(known_as)))

    def to_json(self) -> dict[str, Any]:
        """Plain values, the same for the same lines."""
        summed = [[ids, sorted(s.sites), s.may_change] for ids, sets in self._summed.items() for s in sets]
        return {
            "version": _VERSION,
            "named": sorted(self._named.items()),
            "runs": [[run, *terms] for run, terms in self._terms.items()],
            "answers": [[run, *terms, known.to_json()] for (run, terms), known in self._runs.items()],
            "answered": [[*terms, count] for terms, count in self._answered.items()],
            "groups": sorted(list(group) for group in self._groups),
            "summed": sorted(summed),
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Memory | None":
        """The inverse of `to_json`; None of another release's, which the files tell again."""
        if plain.get("version") != _VERSION:
            return None
        memory = cls()
        memory._named = dict(plain["named"])
        memory._terms = {run: (digest, ids) for run, digest, ids in plain["runs"]}
        memory._runs = {(run, (digest, ids)): _Run.from_json(known) for run, digest, ids, known in plain["answers"]}
        memory._answered = {(digest, ids): count for digest, ids, count in plain["answered"]}
        memory._groups = {tuple(group) for group in plain["groups"]}
        for ids, sites, may_change in plain["summed"]:
            memory._summed.setdefault(ids, set()).add(SummedWith(frozenset(sites), may_change))
        return memory


def _shorten(latest: dict[Any, Any], most: int) -> None:
    if len(latest) > most:
        del latest[next(iter(latest))]


# --- from files ---------------------------------------------------------------------------------------------------


def carried_memory(path: Path) -> Memory | None:
    """The memory that the first line of the ledger's last file carries; None if it carries none of this release's.

    Raises
    ------
    StorageError
        it carries something else.
    """
    with path.open("rb") as file:
        entry = entry_of(file.readline())
    if entry is None or entry.get("kind") != CONTINUED:
        return None
    try:
        return Memory.from_json(entry["carried"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"{path}, line 1: what it carries of earlier files cannot be read ({error!r}).") from None


def remember(path: Path) -> Memory:
    """The memory of the ledger at that path; of one that does not exist, nothing.

    Raises
    ------
    StorageError
        a file cannot be read, or was changed.
    """
    memory = Memory()
    if path.exists():
        carried = carried_memory(path)
        for number, line in enumerate(read_lines(path, only_last=carried is not None)):
            if number == 0 and carried is not None:
                memory = carried
            elif not line.torn:
                with readable(line.path, line.number):
                    memory.add(line.entry)
    return memory


def look_up(path: Path, plan: Plan, known_as: KnownAs) -> Remembered:
    """What stands in all files of one run that `remember` does not know whole; of other runs nothing.

    Raises
    ------
    StorageError
        a file cannot be read.
    """
    memory, naming = Memory(), json.dumps(plan.run).encode()
    try:
        with ExitStack() as ends:
            for _, file in opened(path, ends):
                for line in file:
                    entry = entry_of(line) if naming in line else None
                    if entry is not None and entry.get("run") == plan.run:
                        memory.add(entry)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from None
    return memory.recall(plan, known_as)


def recall(path: Path, plan: Plan, ids_digest: str) -> Remembered:
    """What the ledger at that path tells of this plan on the instances of that digest, and of this run of it.

    Raises
    ------
    StorageError
        a file cannot be read.
    """
    return recalled(remember(path), path, plan, (ids_digest,))


def recalled(memory: Memory, path: Path, plan: Plan, known_as: KnownAs) -> Remembered:
    """The same, by what is remembered already; the files are read where that does not have every question of the run.

    Raises
    ------
    StorageError
        a file cannot be read, or keeps something that no agent wrote.
    """
    with readable(path):
        found = memory.recall(plan, known_as)
        run = found if memory.has_whole(plan, known_as) else look_up(path, plan, known_as)
    return replace(run, answered=found.answered, groups=found.groups)


def summed_with(path: Path, ids_digest: str) -> frozenset[SummedWith]:
    """Every set of sites whose sum an answer on these instances went into, as the ledger at that path has it.

    Raises
    ------
    StorageError
        a file cannot be read.
    """
    return remember(path).summed_with((ids_digest,))
