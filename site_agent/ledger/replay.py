"""The site's memory of its answers, rebuilt from the ledger's entries after a restart.

It holds the number of answers to each plan on a set of instances, over all runs; the rows that a run's answers were computed
from; the sites that answers were summed with.
"""

from pathlib import Path
from typing import Any, TypeVar

from coreg_core.errors import StorageError
from coreg_core.protocol.plan import Plan
from site_agent.ledger.files import GENESIS, Line, read_lines
from site_agent.machine.differencing import SummedWith
from site_agent.machine.memory import Remembered

KNOWN = 4096  # the most runs with a stored plan
OF_SCORING = ("records", "scores")  # questions whose sites are counted for each individual (`machine.scoring`)

T = TypeVar("T")
Terms = tuple[str, str]  # digest of a plan, and the name of its instances


class Memory:
    """See the module's docstring. Instances have the site's own name, or without one the digest that left the site."""

    def __init__(self) -> None:
        self._terms: dict[str, Terms] = {}  # of each run, as accepted last; the latest at the end
        self._offered: dict[str, str] = {}  # the digest of its rows
        self._rows: dict[str, str] = {}  # the same, once it was answered
        self._answered: dict[Terms, int] = {}
        self._summed: dict[str, set[SummedWith]] = {}

    def add(self, entry: dict[str, Any]) -> None:
        kind, run = entry.get("kind"), str(entry.get("run"))
        if kind == "Offer":
            _keep(self._terms, run, (str(entry.get("plan")), str(entry.get("instances", entry.get("ids_digest")))))
            _keep(self._offered, run, str(entry.get("data_digest")))
        elif kind == "Answer" and entry.get("numbers") and (terms := self._terms.get(run)) is not None:
            self._answered[terms] = self._answered.get(terms, 0) + 1
            _keep(self._rows, run, self._offered.get(run, ""))
            if entry.get("participants") and entry.get("question") not in OF_SCORING:
                summed = SummedWith(frozenset(entry["participants"]), bool(entry.get("may_change")))
                self._summed.setdefault(terms[1], set()).add(summed)

    def recall(self, plan: Plan, instances: str) -> Remembered:
        """The records of this plan on these instances."""
        return Remembered(self._answered.get((plan.digest, instances), 0), self._rows.get(plan.run, ""))

    def summed_with(self, instances: str) -> frozenset[SummedWith]:
        """Every set of sites that an answer on these instances was summed with, in any run of any plan."""
        return frozenset(self._summed.get(instances, ()))


def _keep(kept: dict[str, T], run: str, value: T) -> None:
    """Keep a value of the latest runs, this one last."""
    kept.pop(run, None)
    kept[run] = value
    if len(kept) > KNOWN:
        del kept[next(iter(kept))]


def remember(path: Path) -> tuple[Memory, Line]:
    """The memory of the ledger at that path, and its last line; empty if there is no ledger.

    Raises
    ------
    StorageError
        the file cannot be read, or was changed.
    """
    memory, line = Memory(), Line(0, GENESIS, {}, 0)
    for line in read_lines(path) if path.exists() else ():
        try:
            memory.add(line.entry)
        except (TypeError, ValueError, AttributeError) as error:
            raise StorageError(
                f"{path}, line {line.number}: not an entry of this release ({error!r}). Restore the ledger from a backup: "
                "without it, this site has no record of its earlier answers."
            ) from None
    return memory, line
