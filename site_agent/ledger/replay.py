"""The site's memory of its answers, rebuilt from the ledger's entries after a restart.

It holds the number of answers to each plan on a set of instances, over all runs; the sites that answers were summed with;
the disclosed groups of labels. A file that continues another carries the memory on its first line (`to_json`).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from coreg_core.additive.model.grouping import Group
from coreg_core.errors import StorageError
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.ledger.files import CONTINUED, entry_of, read_lines, readable
from site_agent.ledger.quota import BEGINNINGS, is_answer
from site_agent.machine.differencing import SummedWith
from site_agent.machine.memory import Remembered

_VERSION = 3  # of the memory on a first line
KNOWN = 4096  # the most runs with a stored plan, or outcome

T = TypeVar("T")

KnownAs = tuple[str, ...]  # the site's own name of its instances, and their digests that left the site
Terms = tuple[str, str]  # digest of a plan, and the name of its instances


class Memory:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._named: dict[str, str] = {}  # the site's own name of the instances, by a digest that left the site
        self._terms: dict[str, Terms] = {}  # of each run, as accepted last; the latest at the end
        self._answered: dict[Terms, int] = {}
        self._groups: set[Group] = set()
        self._summed: dict[str, set[SummedWith]] = {}
        self._fetched: dict[str, Outcome] = {}  # runs of this file whose end was received and confirmed

    def add(self, entry: dict[str, Any]) -> None:
        kind, run = entry.get("kind"), str(entry.get("run"))
        if kind == "Fetched" and (outcome := Outcome.__members__.get(str(entry.get("outcome")))):
            _keep(self._fetched, run, outcome)
        self._groups.update(tuple(group) for group in entry.get("groups", ()))
        if kind in BEGINNINGS:
            digest = str(entry.get("ids_digest"))
            if "instances" in entry:
                self._unite(digest, str(entry["instances"]))
            _keep(self._terms, run, (str(entry.get("plan")), self._name(digest)))
        elif is_answer(entry) and (terms := self._terms.get(run)) is not None:
            self._answered[terms] = self._answered.get(terms, 0) + 1
            if entry.get("participants"):
                summed = SummedWith(frozenset(entry["participants"]), bool(entry.get("may_change")))
                self._summed.setdefault(terms[1], set()).add(summed)

    def _name(self, digest: str) -> str:
        return self._named.get(digest, digest)

    def _unite(self, digest: str, name: str) -> None:
        """Give these instances that name, and move the records under their earlier name."""
        before = self._name(digest)
        if before == name:
            return
        self._named = {known: name if now == before else now for known, now in self._named.items()} | {digest: name}

        def renamed(terms: Terms) -> Terms:
            return (terms[0], name) if terms[1] == before else terms

        self._terms = {run: renamed(terms) for run, terms in self._terms.items()}
        answered, self._answered = self._answered, {}
        for terms, count in answered.items():
            self._answered[renamed(terms)] = self._answered.get(renamed(terms), 0) + count
        if before in self._summed:
            self._summed.setdefault(name, set()).update(self._summed.pop(before))

    def _names(self, known_as: KnownAs) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._name(digest) for digest in known_as))

    def recall(self, plan: Plan, known_as: KnownAs) -> Remembered:
        """The records of this plan on these instances, under any of these names."""
        answered = sum(self._answered.get((plan.digest, name), 0) for name in self._names(known_as))
        return Remembered(answered, frozenset(self._groups))

    def fetched(self, run: str) -> Outcome | None:
        """The outcome of a run whose end this site received and confirmed."""
        return self._fetched.get(run)

    def untold(self, groups: Iterable[Group]) -> tuple[Group, ...]:
        """The groups that were not disclosed before."""
        return tuple(group for group in groups if group not in self._groups)

    def summed_with(self, known_as: KnownAs) -> frozenset[SummedWith]:
        """Every set of sites that an answer on these instances was summed with, in any run of any plan."""
        return frozenset[SummedWith]().union(*(self._summed.get(name, ()) for name in self._names(known_as)))

    def to_json(self) -> dict[str, Any]:
        """Plain values; equal ledgers give equal values."""
        summed = [[ids, sorted(s.sites), s.may_change] for ids, sets in self._summed.items() for s in sets]
        return {
            "version": _VERSION,
            "named": sorted(self._named.items()),
            "runs": [[run, *terms] for run, terms in self._terms.items()],
            "answered": [[*terms, count] for terms, count in self._answered.items()],
            "groups": sorted(list(group) for group in self._groups),
            "summed": sorted(summed),
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Memory | None":
        """The inverse of `to_json`; None for another release's version, since the files can be read again."""
        if plain.get("version") != _VERSION:
            return None
        memory = cls()
        memory._named = dict(plain["named"])
        memory._terms = {run: (digest, ids) for run, digest, ids in plain["runs"]}
        memory._answered = {(digest, ids): count for digest, ids, count in plain["answered"]}
        memory._groups = {tuple(group) for group in plain["groups"]}
        for ids, sites, may_change in plain["summed"]:
            memory._summed.setdefault(ids, set()).add(SummedWith(frozenset(sites), may_change))
        return memory


def _keep(kept: dict[str, T], run: str, value: T) -> None:
    """Keep a value of the latest runs, this one last."""
    kept.pop(run, None)
    kept[run] = value
    if len(kept) > KNOWN:
        del kept[next(iter(kept))]


# --- from files ---------------------------------------------------------------------------------------------------


def carried_memory(path: Path) -> Memory | None:
    """The memory on the first line of the ledger's current file; None if there is none of this release.

    Raises
    ------
    StorageError
        the memory has another form.
    """
    with path.open("rb") as file:
        entry = entry_of(file.readline())
    if entry is None or entry.get("kind") != CONTINUED:
        return None
    try:
        return Memory.from_json(entry["carried"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"{path}, line 1: the memory of earlier files cannot be read ({error!r}).") from None


def remember(path: Path) -> Memory:
    """The memory of the ledger at that path; empty if there is no ledger.

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
