"""The rows of a site by id: its own labelled rows, and the shared instances in the same order at every site.

Ids are text: stripped, NFC-normalised, and sorted by their UTF-8 bytes. So the order of the file and a guessed type cannot
change them. The shared ids are those of rows without a label, of a table of their own, or those that an alignment found.
"""

import hashlib
import hmac
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coreg_core.errors import StorageError
from coreg_core.numerics.arrays import Arr, Ints
from coreg_core.objectives.alignment import IdRule
from coreg_core.protocol.plan import Plan
from coreg_wire.files.disk import write_whole
from site_agent.data.errors import SHOWN, BadTable, Fault, Faults, some
from site_agent.data.inputs import Inputs
from site_agent.data.notation import Notation
from site_agent.data.sources import NA_VALUES, Source
from site_agent.data.tables import Table, read_table

UNSHARED = "no shared rows"  # the kind of the fault that an alignment of ids can mend
KEPT = 20  # results of alignments
_YEAR, _MONTH, _DAY = r"(19|20)\d\d", "(0?[1-9]|1[0-2])", r"(0?[1-9]|[12]\d|3[01])"
_COMPACT = r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])"
_DATE = re.compile(f"{_YEAR}[-./]{_MONTH}[-./]{_DAY}|{_COMPACT}|{_DAY}[-./]{_MONTH}[-./]{_YEAR}")
_FEW_IDS, _LONG = 10**7, 20


# --- ids of an alignment --------------------------------------------------------------------------------------------


def normalised(text: str, rule: IdRule) -> str:
    """An id by the rule. "exact": NFC and no space around it; "folded": NFKC, case and inner spaces ignored; "numbers": also
    zeros before a digit."""
    if rule == "exact":
        return unicodedata.normalize("NFC", text).strip()
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return re.sub(r"(?<![0-9])0+(?=[0-9])", "", folded) if rule == "numbers" else folded


@dataclass(frozen=True)
class SharedIds:
    """The result of an alignment: this site's shared ids, normalised by ``rule``."""

    rule: IdRule
    ids: tuple[str, ...]
    run: str = ""


class AlignedIds:
    """The results of this site's alignments in a folder: one file for a list of own ids, the other sites and a rule."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, plan: Plan, ids: Sequence[str], rule: IdRule) -> Path:
        about = json.dumps([plan.federation, plan.sites, rule, ids_digest(ids)])
        return self._folder / f"{hashlib.sha256(about.encode()).hexdigest()[:24]}.json"

    def find(self, plan: Plan, ids: Sequence[str], rule: IdRule) -> SharedIds | None:
        """The shared ids of these own ids with the sites of the plan; None if no alignment found them yet."""
        path = self._path(plan, ids, rule)
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            return SharedIds(plain["rule"], tuple(map(str, plain["ids"])), str(plain["run"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{path}: cannot be read ({error}). Delete it: the next run aligns the ids again."
            ) from None

    def put(self, plan: Plan, ids: Sequence[str], shared: SharedIds) -> Path:
        """Keep the result of a run that aligned these own ids, and the last `KEPT` results."""
        path = self._path(plan, ids, shared.rule)
        plain = {"run": shared.run, "rule": shared.rule, "ids": shared.ids}
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, json.dumps(plain, ensure_ascii=False, indent=0).encode(), mode=0o600)
            for old in sorted(self._folder.glob("*.json"), key=lambda each: -each.stat().st_mtime)[KEPT:]:
                old.unlink()
        except OSError as error:
            raise StorageError(f"{self._folder}: cannot be written ({error.strerror}).") from None
        return path


def guessable(ids: Sequence[str]) -> str:
    """A warning where a member can list all ids that are possible, and test them; "" where there are too many."""
    possible = max((10 if text.isdigit() else 36) ** min(len(text), _LONG) for text in ids)
    if all(_DATE.fullmatch(text) for text in ids):
        what = "dates"
    elif possible <= _FEW_IDS:
        what = f"texts with at most {possible:,} possible values"
    else:
        return ""
    return (
        f"WARNING: these ids are {what}. A member can align a list of all of them, and learns which ones every site has. "
        "Use ids with more possible values, such as pseudonyms."
    )


def read_ids(inputs: Inputs, rule: IdRule) -> tuple[str, ...]:
    found, known, column = Faults(), set[str](), inputs.id or ""
    for source in (inputs.table, inputs.unlabelled):
        if source is None:
            continue
        table = read_table(source, na_values=inputs.na_values, notation=inputs.notation).with_id(column)
        ids = [normalised(text, rule) for text in table.ids(column)]
        if empty := _without_id(table, ids, column, "no id"):
            found.add(empty)
        for text, where in _repeated(ids, table.lines).items():
            what = f"the id {text!r} (normalised by the rule {rule!r}) occurs {len(where)} times."
            found.add(Fault(table.source, what, "Keep one row of each individual.", "duplicate", column, where))
        known |= {*ids} - {""}
    found.raise_any()
    if not known:
        raise BadTable(Fault(str(inputs.table), "no id to align.", kind="missing"))
    return tuple(sorted(known, key=str.encode))


# --- labelled and shared rows ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteTable:
    """A site's labelled rows with their targets, and the shared unlabelled rows, sorted by id.

    ``doubts`` are notes that need an answer.
    ``positions`` are the indices of the labelled rows among the shared ones, -1 of rows that are not shared.
    """

    labelled: Table
    y: Arr
    unlabelled: Table
    unlabelled_ids: tuple[str, ...]
    notes: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    positions: Ints | None = None
    labelled_ids: tuple[str, ...] = ()

    @property
    def features(self) -> list[str]:
        return self.labelled.columns


def load_site_tables(inputs: Inputs, aligned: SharedIds | None = None, found: Faults | None = None) -> SiteTable:
    """Read a site's labelled and unlabelled rows. Without `labels` all rows are shared, and no target column is needed.

    Rows with an empty target are the shared unlabelled set. If `unlabelled` names a file, that is the shared set, and such rows
    are left out with a note; if ``aligned``, the shared set are the rows with these ids. ``found`` collects the faults: then
    the result only serves to find more.
    """
    data, target, id_column, unlabelled = inputs.table, inputs.target or "", inputs.id or "", inputs.unlabelled
    drop, labels, positive, na_values = inputs.drop, inputs.labels, inputs.positive, inputs.na_values
    own = Faults()
    table = read_table(data, own, na_values, inputs.notation)
    if positive in na_values:
        own.add(Fault(str(data), f"the positive value {positive!r} means a missing value (na_values).", about=target))
    with own.caught():
        table = table.with_id(id_column)
    apart = (target, id_column, *drop)
    for names, what in (([target] * labels, "the target"), ([id_column], "the id column"), (drop, "to be dropped")):
        with own.caught():
            table.require(list(names), what)
    if target == id_column:
        own.add(Fault(table.source, f"{target!r} is both the target and the id column.", kind="column", about=target))
    y, unread = _labels(table, target, positive, own)
    # The column that a misspelt name means is not a feature either; otherwise one mistake would be two faults.
    meant = {name if name in table.columns else table.like(name) for name in apart}
    features = list[str]()
    for name in dict.fromkeys(name for name in table.columns if name not in meant):
        with own.caught():
            features.append(table.cells(name).name)
    if not features:
        own.add(Fault(table.source, f"no feature column is left besides {target!r} and {id_column!r}."))
    labelled, empty = np.flatnonzero(~np.isnan(y) | unread), np.flatnonzero(np.isnan(y) & ~unread)
    if not len(own) or target in table.columns:  # without a target column the rows cannot be split
        own.add(
            *_parts_lacking(table, target, labels, len(labelled), len(empty), unlabelled is None and aligned is None)
        )
    notes = [*table.notes]
    if positive and len(labelled) and not y[labelled].any():
        notes.append(f"{data}: no row of {target!r} has the positive value {positive!r}, so all labels are 0")
    shared = table.rows(empty)
    if unlabelled is not None:
        with own.caught():
            shared = read_table(unlabelled, own, na_values, inputs.notation).with_id(id_column)
            notes += shared.notes
            shared.require([id_column], "the id column")
            shared.require(features, f"features of {data}")
            if extra := [c for c in shared.columns if c not in {*features, *apart}]:
                notes.append(f"{shared.source}: not used, because {data} does not have these columns: {some(extra)}")
        if len(empty):
            notes.append(
                f"{data}: {len(empty)} rows without a target are left out, because --unlabelled names the shared set"
            )
    if aligned is not None:
        with own.caught():
            source = table if unlabelled is None else shared
            complete = all(fault.kind != "ragged" for fault in own)  # else the ids of malformed lines are not read
            shared = _with_shared_ids(source, id_column, aligned, complete=complete)
            known = frozenset(aligned.ids)
            at = empty if unlabelled is None else np.arange(len(source))
            unused = sum(normalised(text, aligned.rule) not in known for text in source.rows(at).ids(id_column))
            if unused:
                notes.append(
                    f"{source.source}: {unused} rows have no label and no shared id. They are not used, and not checked"
                )
    own_ids: tuple[str, ...] = ()
    doubts = list[str]()
    with own.caught():
        for each in (table,) if unlabelled is None else (table, shared):
            doubts += each.doubts([name for name in features if name in each.columns], id_column)
    ids: list[str] = [""] * len(shared)
    with own.caught():
        if id_column in table.columns and id_column in shared.columns:
            rule: IdRule = "exact" if aligned is None else aligned.rule
            own_ids = tuple(normalised(text, rule) for text in table.rows(labelled).ids(id_column))
            if copies := _repeated(own_ids, table.lines[labelled]):
                doubts.append(
                    f"{data}: more than one labelled row has the id {some(copies)}. If one is a copy, remove it"
                )
            ids = _checked_ids(shared, id_column, rule)
    if found is None:
        own.raise_any()
    else:
        found.add(*own)
    order = np.array(sorted(range(len(ids)), key=lambda i: ids[i].encode()), dtype=np.int64)
    shared_ids = tuple(ids[i] for i in order)
    return SiteTable(
        labelled=table.rows(labelled).select(features),
        y=np.ascontiguousarray(y[labelled]),
        unlabelled=shared.rows(order).select([name for name in features if name in shared.columns]),
        unlabelled_ids=shared_ids,
        notes=tuple(notes),
        doubts=tuple(doubts),
        positions=_positions(own_ids, shared_ids),
        labelled_ids=own_ids,
    )


def _labels(table: Table, target: str, positive: str, found: Faults) -> tuple[Arr, NDArray[np.bool_]]:
    """The label column (NaN: empty), and which rows have a label that cannot be read."""
    nothing = np.full(len(table), np.nan)
    if target not in table.columns:
        return nothing, np.zeros(len(table), dtype=np.bool_)
    try:
        y = table.with_classes(target, positive).numbers(target, target=True)
    except BadTable as error:
        found.add(*error.faults)
        with found.caught():
            return nothing, ~table.missing(target)
        return nothing, np.ones(len(table), dtype=np.bool_)
    return y, np.zeros(len(table), dtype=np.bool_)


def _parts_lacking(table: Table, target: str, labels: bool, labelled: int, empty: int, here: bool) -> Iterator[Fault]:
    """Faults if there is no labelled row, a labelled row with --no-labels, or no shared row."""
    if labels and labelled == 0:
        what = f"no row has a value in {target!r}. A site needs labelled rows of its own."
        todo = "Under the additive objective a site without labels can take part with --no-labels."
        yield Fault(table.source, what, todo, kind="missing", about=target)
    if not labels and labelled:
        what = f"{labelled} rows have a value in {target!r}, although --no-labels is given."
        yield Fault(table.source, what, kind="column", about=target)
    if here and empty == 0:
        what = f"no row has an empty {target!r}, so there are no shared unlabelled instances."
        todo = "A run aligns the ids first. Without that, add rows with an empty target, or name their table with --unlabelled."
        yield Fault(table.source, what, todo, kind=UNSHARED, about=target)


def load_batch(
    path: Source,
    id_column: str,
    na_values: Sequence[str] = NA_VALUES,
    aligned: SharedIds | None = None,
    notation: Notation = Notation(),  # noqa: B008 - it is frozen
) -> tuple[Table, tuple[str, ...], tuple[str, ...]]:
    """Read a table of instances to score together.

    Returns the rows, their ids as the file writes them, and their ids as the sites compare them. The rows are sorted by the
    compared ids, as at every site. With ``aligned`` they are the rows with these ids.
    """
    table = read_table(path, na_values=na_values, notation=notation).with_id(id_column)
    table.require([id_column], "the id column")
    if aligned is not None:
        table = _with_shared_ids(table, id_column, aligned, complete=True)
    keys = _checked_ids(table, id_column, "exact" if aligned is None else aligned.rule)
    ids = keys if aligned is None else table.ids(id_column)
    order = np.array(sorted(range(len(keys)), key=lambda i: keys[i].encode()), dtype=np.int64)
    return table.rows(order), tuple(ids[i] for i in order), tuple(keys[i] for i in order)


def _without_id(table: Table, ids: Sequence[str], column: str, what: str) -> Fault | None:
    lines = tuple(int(table.lines[i]) for i, text in enumerate(ids) if not text)
    return Fault(table.source, f"{what} in {column!r}.", kind="missing", lines=lines, about=column) if lines else None


def _repeated(ids: Sequence[str], lines: Ints) -> dict[str, tuple[int, ...]]:
    where: dict[str, list[int]] = {}
    for text, line in zip(ids, lines.tolist(), strict=True):
        if text:
            where.setdefault(text, []).append(line)
    return {text: tuple(found) for text, found in where.items() if len(found) > 1}


def _positions(own: Sequence[str], shared: Sequence[str]) -> Ints:
    where = {text: i for i, text in enumerate(shared)}
    return np.array([where.get(text, -1) for text in own], dtype=np.int64)


def _with_shared_ids(table: Table, column: str, aligned: SharedIds, *, complete: bool) -> Table:
    """The rows with shared ids; ``complete``: no line of the table was left out."""
    ids, shared = [normalised(text, aligned.rule) for text in table.ids(column)], frozenset(aligned.ids)
    rows = np.array([i for i, text in enumerate(ids) if text in shared], dtype=np.int64)
    if complete and (gone := sorted(shared - set(ids))):
        what = f"{len(gone)} of the {len(aligned.ids)} ids that the sites share are not in {column!r}: {some(gone)}."
        todo = "Restore their rows, or align again."
        if len(gone) == len(aligned.ids):
            todo = f"None is there, so {column!r} is probably not the id column, or this is another table."
        raise BadTable(Fault(table.source, what, todo, "missing", column))
    return table.rows(rows)


def _checked_ids(table: Table, column: str, rule: IdRule = "exact") -> list[str]:
    ids, found = [normalised(text, rule) for text in table.ids(column)], Faults()
    if empty := _without_id(table, ids, column, "a shared instance without an id"):
        found.add(empty)
    repeated = _repeated(ids, table.lines)
    often = max(len(repeated), *map(len, repeated.values()), 0)
    if often > SHOWN and 4 * sum(map(len, repeated.values())) > len(ids):
        what = f"{column!r} is no id of these rows: {len(ids)} shared instances have {len(set(ids))} different values."
        columns = {name: table.ids(name) for name in _readable(table) if name != column}
        unique = [n for n, v in columns.items() if len(set(v)) == len(v) and not any("." in text for text in v)]
        todo = (
            f"All values of {some(unique, 3)} are different: give that column as the id."
            if unique
            else "Name the id column."
        )
        lines = tuple(line for lines in repeated.values() for line in lines)
        found.add(Fault(table.source, what, todo, kind="duplicate", lines=lines, about=column))
        repeated = {}
    for text, lines in repeated.items():
        count = "twice" if len(lines) == 2 else f"{len(lines)} times"
        what = f"the id {text!r} occurs {count} among the shared instances."
        found.add(Fault(table.source, what, "Keep each instance once.", kind="duplicate", lines=lines, about=column))
    found.raise_any()
    return ids


def _readable(table: Table) -> list[str]:
    found = list[str]()
    for name in dict.fromkeys(table.columns):
        with Faults().caught():
            found.append(table.cells(name).name)
    return found


def ids_digest(ids: Sequence[str]) -> str:
    """SHA-256 (hex) of the ordered ids. The length before each id keeps different lists apart."""
    digest = hashlib.sha256()
    for text in ids:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def own_name(digest: str, salt: bytes) -> str:
    """The name of a set of instances in this site's ledger, keyed by its own secret: a change of `ids_secret` keeps it."""
    return hmac.new(salt, b"instances " + digest.encode(), hashlib.sha256).hexdigest()


def keyed(digest: str, secret: str) -> str:
    """HMAC-SHA256 (hex) of a digest. Without the sites' secret it confirms no guess of the ids."""
    return hmac.new(secret.encode(), digest.encode(), hashlib.sha256).hexdigest()
