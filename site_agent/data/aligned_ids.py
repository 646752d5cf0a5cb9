"""The ids of an alignment: those that a site offers, and its results, which the site keeps."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coreg_core.errors import StorageError
from coreg_core.objectives.alignment import IdRule
from coreg_core.plan import Plan
from coreg_wire.files.disk import make_private_folder, write_whole
from site_agent.data.ids import compared_ids, ids_digest, unique_ids
from site_agent.data.inputs import Inputs
from site_agent.data.sources import BadTable, Faults, TableFault, some
from site_agent.data.tables import Table, name_of, read_inputs

KEPT = 20  # results of alignments
_YEAR = r"(19|20)\d\d"
_MONTH = "(0?[1-9]|1[0-2])"
_DAY = r"(0?[1-9]|[12]\d|3[01])"
_COMPACT = r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])"
_DATE = re.compile(f"{_YEAR}[-./]{_MONTH}[-./]{_DAY}|{_COMPACT}|{_DAY}[-./]{_MONTH}[-./]{_YEAR}")
_FEW_IDS = 10**7
_LONG = 20  # characters, of which all texts are too many to list


@dataclass(frozen=True)
class SharedIds:
    """The result of an alignment: this site's shared ids, normalised by ``rule``."""

    rule: IdRule
    ids: tuple[str, ...]
    run: str = ""


class AlignedIds:
    """The results of this site's alignments in a folder: one file for a list of own ids, the other
    sites and a rule.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, plan: Plan, ids: Sequence[str], rule: IdRule) -> Path:
        about = json.dumps([plan.federation, plan.sites, rule, ids_digest(ids)])
        return self._folder / f"{hashlib.sha256(about.encode()).hexdigest()[:24]}.json"

    def find(self, plan: Plan, ids: Sequence[str], rule: IdRule) -> SharedIds | None:
        """The shared ids of these own ids with the sites of the plan; None if no alignment found
        them yet.
        """
        path = self._path(plan, ids, rule)
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            return SharedIds(plain["rule"], tuple(map(str, plain["ids"])), str(plain["run"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StorageError(
                f"{path}: cannot be read ({error}). Delete it: the next run aligns the ids again."
            ) from None

    def put(self, plan: Plan, ids: Sequence[str], shared: SharedIds) -> Path:
        """Keep the result of a run that aligned these own ids, and the last `KEPT` results."""
        path = self._path(plan, ids, shared.rule)
        plain = {"run": shared.run, "rule": shared.rule, "ids": shared.ids}
        try:
            make_private_folder(self._folder)
            text = json.dumps(plain, ensure_ascii=False, indent=0)
            write_whole(path, text.encode(), mode=0o600)
            results = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
            for old in results[:-KEPT]:
                old.unlink()
        except OSError as error:
            raise StorageError(f"{self._folder}: cannot be written ({error.strerror}).") from None
        return path


def guessable(ids: Sequence[str]) -> str:
    """A warning where a member can list all ids that are possible, and test them; "" where there
    are too many.
    """
    possible = 0
    for text in ids:
        characters = 10 if text.isdigit() else 36
        possible = max(possible, characters ** min(len(text), _LONG))
    if all(map(_DATE.fullmatch, ids)):
        what = "dates"
    elif possible <= _FEW_IDS:
        what = f"texts with at most {possible:,} possible values"
    else:
        return ""
    return (
        f"WARNING: these ids are {what}. A member can align a list of all of them, and learns which"
        " ones every site has. Use ids with more possible values, such as pseudonyms."
    )


def read_ids(inputs: Inputs, rule: IdRule) -> tuple[str, ...]:
    """All ids of this site's tables, sorted."""
    faults = Faults()
    ids: set[str] = set()
    for source in (inputs.table, inputs.unlabelled):
        with faults.caught():
            if source is not None:
                table = read_inputs(inputs, faults, source)
                ids.update(unique_ids(table, inputs.id or "", rule, faults))
    faults.raise_any()
    if not ids:
        raise BadTable(TableFault(name_of(inputs.table), "no id to align.", kind="missing"))
    return tuple(sorted(ids, key=str.encode))


def with_shared_ids(table: Table, column: str, aligned: SharedIds, *, complete: bool) -> Table:
    """The rows with shared ids; ``complete``: no line of the table was left out."""
    ids = compared_ids(table, column, aligned.rule)
    gone = sorted({*aligned.ids} - {*ids})
    if complete and gone:
        what = (
            f"{len(gone)} of the {len(aligned.ids)} ids that the sites share are not in {column!r}:"
            f" {some(gone)}."
        )
        todo = "Restore their rows, or align again."
        if len(gone) == len(aligned.ids):
            todo = (
                f"None is there, so {column!r} is probably not the id column, or this is another"
                " table."
            )
        raise BadTable(TableFault(table.source, what, todo, "missing", column))
    return table.rows(np.array(is_shared(ids, aligned), dtype=np.bool_))


def is_shared(ids: Sequence[str], aligned: SharedIds) -> list[bool]:
    shared = frozenset(aligned.ids)
    return [text in shared for text in ids]
