"""Read the operator's files into the arrays of a run: a site's labelled rows, and the shared
instances in the same order at every site. With notes for the operator. Rows, ids and columns stay
at the site.

Ids are text: stripped, NFC-normalised, and sorted by their UTF-8 bytes. So the order of the file
and a guessed type cannot change them. The shared ids are those of rows without a label, of a table
of their own, or those that an alignment found. A data set is read when a run needs it, and again if
its file has changed.
"""

import hashlib
import hmac
import json
import re
import secrets
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.objectives.alignment import IdRule
from coreg_core.plan import Plan
from coreg_wire.files.disk import make_private_folder, write_whole
from site_agent.data.cell_text import canonical
from site_agent.data.databases import digest, one_snapshot
from site_agent.data.inputs import Inputs
from site_agent.data.notation import flag
from site_agent.data.preprocessing import Preprocessing, size_fault
from site_agent.data.sources import SHOWN, BadTable, Fault, Faults, Query, Source, some
from site_agent.data.tables import CLASSES_OF_A_STUDY, Table, name_of, read_table
from site_agent.site_data import PrivateData, row_keys

UNSHARED = "no shared rows"  # the kind of the fault that an alignment of ids can mend
WAITING = {UNSHARED, CLASSES_OF_A_STUDY}  # kinds that are no fault until a run needs the rows
KEPT = 20  # results of alignments
_YEAR, _MONTH, _DAY = r"(19|20)\d\d", "(0?[1-9]|1[0-2])", r"(0?[1-9]|[12]\d|3[01])"
_COMPACT = r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])"
_DATE = re.compile(f"{_YEAR}[-./]{_MONTH}[-./]{_DAY}|{_COMPACT}|{_DAY}[-./]{_MONTH}[-./]{_YEAR}")
_FEW_IDS, _LONG = 10**7, 20


# --- ids of an alignment --------------------------------------------------------------------------


def normalised(text: str, rule: IdRule) -> str:
    """An id by the rule: "exact" (NFC), "folded" (NFKC, no case or inner spaces), "numbers" (also
    no leading zeros).
    """
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
            told = (
                f"{path}: cannot be read ({error}). Delete it: the next run aligns the ids again."
            )
            raise StorageError(told) from None

    def put(self, plan: Plan, ids: Sequence[str], shared: SharedIds) -> Path:
        """Keep the result of a run that aligned these own ids, and the last `KEPT` results."""
        path = self._path(plan, ids, shared.rule)
        plain = {"run": shared.run, "rule": shared.rule, "ids": shared.ids}
        try:
            make_private_folder(self._folder)
            write_whole(path, json.dumps(plain, ensure_ascii=False, indent=0).encode(), mode=0o600)
            for old in sorted(self._folder.glob("*.json"), key=lambda each: -each.stat().st_mtime)[
                KEPT:
            ]:
                old.unlink()
        except OSError as error:
            raise StorageError(f"{self._folder}: cannot be written ({error.strerror}).") from None
        return path


def guessable(ids: Sequence[str]) -> str:
    """A warning where a member can list all ids that are possible, and test them; "" where there
    are too many.
    """
    possible = max((10 if text.isdigit() else 36) ** min(len(text), _LONG) for text in ids)
    if all(_DATE.fullmatch(text) for text in ids):
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
    found, known, column = Faults(), set[str](), inputs.id or ""
    for source in (inputs.table, inputs.unlabelled):
        if source is None:
            continue
        with found.caught():
            table = read_table(source, found, inputs.na_values, inputs.notation).with_id(column)
            known |= {*unique_ids(table, column, rule, found)} - {""}
    found.raise_any()
    if not known:
        raise BadTable(Fault(name_of(inputs.table), "no id to align.", kind="missing"))
    return tuple(sorted(known, key=str.encode))


# --- labelled and shared rows ---------------------------------------------------------------------


@dataclass(frozen=True)
class SiteTable:
    """Labelled rows, and shared rows sorted by id; ``positions`` of the labelled in the shared
    ones, -1 of others.
    """

    labelled: Table
    y: Arr
    unlabelled: Table
    unlabelled_ids: tuple[str, ...]
    written_ids: tuple[str, ...]  # the same as the site's table writes them
    notes: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    positions: Ints | None = None
    labelled_ids: tuple[str, ...] = ()
    negative: str = ""  # the value of a yes/no target that is 0


def load_site_tables(
    inputs: Inputs, aligned: SharedIds | None, own: Faults, classes: Sequence[str] = ()
) -> SiteTable:
    """Read labelled and shared rows; ``aligned``: the shared are those with these ids.

    ``own`` collects faults, to find more.
    """
    data, target, id_column, unlabelled = (
        inputs.table,
        inputs.target or "",
        inputs.id or "",
        inputs.unlabelled,
    )
    drop, labels, positive, na_values = (
        inputs.drop,
        inputs.labels,
        inputs.positive,
        inputs.na_values,
    )
    table = read_table(data, own, na_values, inputs.notation)
    if positive in na_values:
        own.add(
            Fault(
                table.source,
                f"the positive value {positive!r} means a missing value (na_values).",
                about=target,
            )
        )
    with own.caught():
        table = table.with_id(id_column)
    misspelt = [
        table.like(name) for name in (*[target] * labels, id_column) if name not in table.columns
    ]
    apart = (target, id_column, *drop, *misspelt)
    for names, what, todo in (
        ([target] * labels, "the target", WITHOUT_LABELS),
        ([id_column], "the id column", ""),
        (drop, "to be dropped", ""),
    ):
        with own.caught():
            table.require(list(names), what, todo)
    if target == id_column:
        own.add(
            Fault(
                table.source,
                f"{target!r} is both the target and the id column.",
                kind="column",
                about=target,
            )
        )
    y, unread = _labels(table, target, positive, classes, own)
    features = list[str]()
    for name in dict.fromkeys(name for name in table.columns if name not in apart):
        with own.caught():
            features.append(table.cells(name).name)
    if not features:
        own.add(
            Fault(table.source, f"no feature column is left besides {target!r} and {id_column!r}.")
        )
    labelled, empty = np.flatnonzero(~np.isnan(y) | unread), np.flatnonzero(np.isnan(y) & ~unread)
    if not len(own) or target in table.columns:  # without a target column the rows cannot be split
        here = unlabelled is None and aligned is None
        own.add(*_parts_lacking(table, target, labels, len(labelled), len(empty), here))
    notes = [*table.notes]
    if positive and len(labelled) and not y[labelled].any():
        notes.append(
            f"{table.source}: no row of {target!r} has the positive value {positive!r}, so all"
            " labels are 0"
        )
    shared = table.rows(empty)
    if unlabelled is not None:
        with own.caught():
            shared = read_table(unlabelled, own, na_values, inputs.notation).with_id(id_column)
            notes += shared.notes
            shared.require([id_column], "the id column")
            shared.require(features, f"features of {table.source}")
            if extra := [c for c in shared.columns if c not in {*features, *apart}]:
                notes.append(
                    f"{shared.source}: not used, because {table.source} does not have these"
                    f" columns: {some(extra)}"
                )
        if len(empty):
            notes.append(
                f"{table.source}: {len(empty)} rows without a target are left out: --unlabelled"
                " names the shared set"
            )
    if aligned is not None:
        with own.caught():
            source = table if unlabelled is None else shared
            complete = all(
                fault.kind != "ragged" for fault in own
            )  # else the ids of malformed lines are not read
            shared = with_shared_ids(source, id_column, aligned, complete=complete)
            known = frozenset(aligned.ids)
            at = empty if unlabelled is None else np.arange(len(source))
            unused = sum(
                normalised(text, aligned.rule) not in known
                for text in source.rows(at).ids(id_column)
            )
            if unused:
                told = "rows have no label and no shared id. They are not used, and not checked"
                notes.append(f"{source.source}: {unused} {told}")
    own_ids: tuple[str, ...] = ()
    doubts = list[str]()
    with own.caught():
        for each in (table,) if unlabelled is None else (table, shared):
            doubts += each.doubts(id_column)
    ids: list[str] = [""] * len(shared)
    written = ids
    with own.caught():
        if id_column in table.columns and id_column in shared.columns:
            rule: IdRule = "exact" if aligned is None else aligned.rule
            own_ids = tuple(normalised(text, rule) for text in table.rows(labelled).ids(id_column))
            if copies := _repeated(own_ids, table.lines[labelled]):
                told = (
                    f"more than one labelled row has the id {some(copies)}. A run that aligns ids"
                    " refuses the table"
                )
                doubts.append(f"{table.source}: {told}")
            ids = unique_ids(shared, id_column, rule, own)
            written = list(shared.ids(id_column))
    order = order_of(ids)
    shared_ids = tuple(ids[i] for i in order)
    where = {text: i for i, text in enumerate(shared_ids)}
    return SiteTable(
        labelled=table.rows(labelled).select(features),
        y=np.ascontiguousarray(y[labelled]),
        unlabelled=shared.rows(order).select([name for name in features if name in shared.columns]),
        unlabelled_ids=shared_ids,
        written_ids=tuple(written[i] for i in order),
        notes=tuple(notes),
        doubts=tuple(doubts),
        positions=np.array([where.get(text, -1) for text in own_ids], dtype=np.int64),
        labelled_ids=own_ids,
        negative=_negative(table, target, positive),
    )


def _labels(
    table: Table, target: str, positive: str, classes: Sequence[str], found: Faults
) -> tuple[Arr, NDArray[np.bool_]]:
    """The label column (NaN: empty), and which rows have a label that cannot be read."""
    nothing = np.full(len(table), np.nan)
    if target not in table.columns:
        return nothing, np.zeros(len(table), dtype=np.bool_)
    try:
        coded = table.with_places(target, classes).with_classes(target, positive)
        y = coded.numbers(target, target=True)
    except BadTable as error:
        found.add(*error.faults)
        with found.caught():
            return nothing, ~table.missing(target)
        return nothing, np.ones(len(table), dtype=np.bool_)
    if not np.isnan(y).all() and (fault := size_fault(table, target, y)):
        found.add(fault)
    return y, np.zeros(len(table), dtype=np.bool_)


def _negative(table: Table, target: str, positive: str) -> str:
    """The value of a yes/no target besides the positive one; "" without one."""
    if not positive or target not in table.columns:
        return ""
    texts = dict.fromkeys(table.texts(target))
    return next((text for text in texts if text not in (None, canonical(positive))), None) or ""


def _parts_lacking(
    table: Table, target: str, labels: bool, labelled: int, empty: int, here: bool
) -> Iterator[Fault]:
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
        todo = (
            "A run aligns the ids first. Without that, add rows with an empty target, or name their"
            " table with --unlabelled."
        )
        yield Fault(table.source, what, todo, kind=UNSHARED, about=target)


def order_of(ids: Sequence[str]) -> Ints:
    """The order of the instances at every site: by the UTF-8 bytes of their ids."""
    return np.array(sorted(range(len(ids)), key=lambda i: ids[i].encode()), dtype=np.int64)


# How ids are compared under a rule, if not as they are written.
_COMPARED: Mapping[IdRule, str] = {
    "exact": "",
    "folded": " (compared without case and further spaces)",
    "numbers": " (compared without case, further spaces and leading zeros)",
}


def unique_ids(table: Table, column: str, rule: IdRule, found: Faults) -> list[str]:
    """The ids of all rows, normalised; an empty one, and one that occurs twice, is a fault in
    ``found``.
    """
    ids = [normalised(text, rule) for text in table.ids(column)]
    if empty := tuple(int(table.lines[i]) for i, text in enumerate(ids) if not text):
        found.add(
            Fault(table.source, f"no id in {column!r}.", kind="missing", lines=empty, about=column)
        )
    repeated = _repeated(ids, table.lines)
    todo = (
        "Keep one row of each individual, by a rule such as the latest visit. If each row is an"
        f" individual of its own, add a column to the id: {flag('id', f'{column}+NAME')}."
    )
    if len(repeated) > SHOWN:
        what = f"{len(repeated)} ids occur more than once{_COMPARED[rule]}: {some(repeated)}."
        lines = tuple(line for lines in repeated.values() for line in lines)
        found.add(Fault(table.source, what, todo, "duplicate", lines=lines, about=column))
        return ids
    for text, lines in repeated.items():
        what = f"the id {text!r} occurs {len(lines)} times{_COMPARED[rule]}."
        found.add(
            Fault(
                table.source,
                what,
                todo,
                "duplicate",
                lines=lines,
                about=column,
            )
        )
    return ids


def _repeated(ids: Sequence[str], lines: Ints) -> dict[str, tuple[int, ...]]:
    where: dict[str, list[int]] = {}
    for text, line in zip(ids, lines.tolist(), strict=True):
        if text:
            where.setdefault(text, []).append(line)
    return {text: tuple(found) for text, found in where.items() if len(found) > 1}


def with_shared_ids(table: Table, column: str, aligned: SharedIds, *, complete: bool) -> Table:
    """The rows with shared ids; ``complete``: no line of the table was left out."""
    ids, shared = (
        [normalised(text, aligned.rule) for text in table.ids(column)],
        frozenset(aligned.ids),
    )
    rows = np.array([i for i, text in enumerate(ids) if text in shared], dtype=np.int64)
    if complete and (gone := sorted(shared - set(ids))):
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
        raise BadTable(Fault(table.source, what, todo, "missing", column))
    return table.rows(rows)


def ids_digest(ids: Sequence[str]) -> str:
    """SHA-256 (hex) of the ordered ids. The length before each id keeps different lists apart."""
    digest = hashlib.sha256()
    for text in ids:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def own_name(digest: str, salt: bytes) -> str:
    """The name of a set of instances in this site's ledger, keyed by its own secret: a change of
    `ids_secret` keeps it.
    """
    return hmac.new(salt, b"instances " + digest.encode(), hashlib.sha256).hexdigest()


def keyed(digest: str, secret: str) -> str:
    """HMAC-SHA256 (hex) of a digest. Without the sites' secret it confirms no guess of the ids."""
    return hmac.new(secret.encode(), digest.encode(), hashlib.sha256).hexdigest()


# --- arrays ---------------------------------------------------------------------------------------

Stamp = tuple[tuple[int, int, int] | str, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Prepared:
    """The arrays, the preprocessing that made them, and notes for the operator."""

    data: PrivateData
    preprocessing: Preprocessing
    table: SiteTable
    notes: tuple[str, ...]

    @property
    def labelled_and_shared(self) -> list[str]:
        return sorted({*self.table.labelled_ids} & {*self.table.unlabelled_ids})


def prepare(
    inputs: Inputs,
    salt: bytes = b"",
    aligned: SharedIds | None = None,
    classes: tuple[str, ...] = (),
) -> Prepared:
    """Read and preprocess a site's tables; ``aligned``: the ids that it shares, ``classes``: those
    of the study's target.
    """
    found = Faults()
    table = load_site_tables(inputs, aligned, found, classes)
    with found.caught(), _target_named(inputs):
        rows, categorical, dates = (
            (table.labelled, table.unlabelled),
            inputs.categorical,
            inputs.dates,
        )
        fitted = Preprocessing.fit(*rows, categorical=categorical, dates=dates, scale=inputs.scale)
        preprocessing = replace(fitted, na_values=inputs.na_values)
    found.raise_any()
    data = PrivateData(
        X=preprocessing.transform(table.labelled),
        y=table.y,
        Z=preprocessing.transform(table.unlabelled),
        ids_digest=ids_digest(table.unlabelled_ids),
        salt=salt,
        positions=table.positions,
        row_keys=row_keys(table.labelled_ids, table.y, salt),
        instances=own_name(ids_digest(sorted(table.unlabelled_ids, key=str.encode)), salt),
        ids=table.unlabelled_ids,
        positive=inputs.positive,
        negative=table.negative,
        classes=classes,
        target=inputs.target or "",
    )
    return Prepared(data, preprocessing, table, (*table.notes, *table.doubts, *preprocessing.notes))


@contextmanager
def _target_named(inputs: Inputs) -> Iterator[None]:
    """Without labels an empty column can be the target, which no option names."""
    try:
        yield
    except BadTable as error:
        if inputs.labels or inputs.target is not None:
            raise
        raise BadTable(*map(_or_target, error.faults)) from None


def _or_target(fault: Fault) -> Fault:
    if fault.kind != "missing" or fault.column is None:
        return fault
    otherwise = fault.todo[:1].lower() + fault.todo[1:]
    named = flag("target", fault.column)
    return replace(fault, todo=f"If it is the target of the study, give {named}; else {otherwise}")


def site_salt(path: Path, ledger: Path) -> bytes:
    """The site's secret for its data digest, and for names in its ledger: created once (mode 0600),
    never sent.
    """
    try:
        if path.exists():
            return path.read_bytes()
        if ledger.exists() and ledger.stat().st_size:
            raise StorageError(
                f"{path} is missing, and {ledger} has answers whose instances are named under it."
                " Restore both from the same backup (docs/how-to/operate-a-site.md)."
            )
        make_private_folder(path.parent)
        salt = secrets.token_bytes(32)
        write_whole(path, salt, mode=0o600)  # synced before the ledger's first line, which needs it
    except OSError as error:
        raise StorageError(f"{path}: cannot be used ({error.strerror}).") from None
    return salt


class DataSets:
    """Reads data sets on demand, and keeps what it read until the file, its settings or the
    question change.
    """

    def __init__(
        self,
        inputs: Mapping[str, Inputs],
        salt: bytes,
        read: Callable[..., Prepared] = prepare,
    ):
        self._inputs, self.salt, self._prepare = dict(inputs), salt, read
        self._known: dict[tuple[str, ...], tuple[Any, Any]] = {}  # from what it was made, and it
        self._lock = threading.RLock()  # a run that needs a data set waits until it is read

    def choose(self, name: str) -> str:
        """The data set of a plan: the one that it names, or the only one if it names none.

        The error leaves the site.
        """
        if name in self._inputs:
            return name
        if "" in self._inputs or (
            not name and len(self._inputs) == 1
        ):  # a table without a name is for every plan
            return next(iter(self._inputs))
        if not name:
            raise UsageError("the plan names no data set, and this site has several.")
        raise UsageError(
            f"this site has no data set {name!r}. Add [data.{name}] to its agent.toml and start the"
            " agent again, or correct `data` of the study."
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._inputs)

    def inputs(self, name: str) -> Inputs:
        return self._inputs[name]

    def named(
        self, name: str, target: str = "", id_column: str = "", *, trains: bool = True
    ) -> Inputs:
        """... with the columns that the site leaves open: see `named`."""
        inputs = self._inputs[name]
        asked = (inputs, target, id_column, trains)
        return self.made(
            (name, "named"), inputs, asked, lambda: named(inputs, target, id_column, trains=trains)
        )[0]

    def ids(self, name: str, inputs: Inputs, rule: IdRule) -> tuple[str, ...]:
        return self.made((name, "ids", rule), inputs, inputs, lambda: read_ids(inputs, rule))[0]

    def get(
        self,
        name: str,
        inputs: Inputs | None = None,
        aligned: SharedIds | None = None,
        classes: tuple[str, ...] = (),
    ) -> tuple[Prepared, bool]:
        """A data set as it is on the disk now, and whether it was read again.

        Errors can name rows: they must not leave.
        """
        own = self._inputs[name] if inputs is None else inputs
        return self.made(
            (name, "rows"),
            own,
            (own, aligned, classes),
            lambda: self._prepare(own, self.salt, aligned, classes),
        )

    def made(
        self, key: tuple[str, ...], inputs: Inputs, asked: Any, make: Callable[[], T]
    ) -> tuple[T, bool]:
        """``make()`` or what it made before from the same question and files; and whether it is
        new.
        """
        with self._lock, one_snapshot():
            stamp = _stamp(inputs)
            if (known := self._known.get(key)) is not None and known[0] == (asked, stamp):
                return known[1], False
            made = make()
            if _stamp(inputs) != stamp:
                todo = "Write a new file beside it, then rename that."
                raise BadData(f"{inputs.table}: the file changed during reading. {todo}")
            self._known[key] = (asked, stamp), made
            return made, True


def _stamp(inputs: Inputs) -> Stamp:
    sources: tuple[Any, ...] = (inputs.table, inputs.unlabelled)  # of data frames too
    return tuple(_of(source) for source in sources if isinstance(source, Path | Query))


def _of(source: Source) -> tuple[int, int, int] | str:
    """What differs once a file is written, or once a query has other rows."""
    if isinstance(source, Query):
        return digest(source)
    path = source
    try:
        found = path.stat()
    except FileNotFoundError:
        raise BadData(f"{path}: no such file. Correct the path.") from None
    except OSError as error:
        raise BadData(f"{path}: cannot be read ({error.strerror}).") from None
    return found.st_ino, found.st_size, found.st_mtime_ns


# --- the columns that a site leaves open ----------------------------------------------------------

USUAL_TARGETS = ("y", "target", "label")
USUAL_ID = "id"
WITHOUT_LABELS = " A site without labels uses --no-labels."


def named(inputs: Inputs, target: str = "", id_column: str = "", *, trains: bool = True) -> Inputs:
    """The inputs with both columns; ``target`` and ``id_column`` are the study's, "" where it names
    none.
    """
    if inputs.id is not None and not (trains and inputs.target is None):
        return inputs
    table = read_table(inputs.table, Faults(), inputs.na_values, inputs.notation)
    columns = list(dict.fromkeys(table.columns))
    found, source = Faults(), name_of(inputs.table)
    chosen = {"id": inputs.id, "target": inputs.target}
    if inputs.id is None:
        ends = [name for name in columns if name.endswith("_id")]
        usual = [USUAL_ID] if USUAL_ID in columns else ends
        chosen["id"] = id_column or (usual[0] if len(usual) == 1 else None)
        if chosen["id"] is None:
            found.add(_open(source, "the id column", "--id.", columns))
    if trains and inputs.target is None and not inputs.labels:
        # The target's column of a site without labels is empty, and no feature.
        empty = (name for name in (target, *USUAL_TARGETS) if name in columns)
        chosen["target"] = next((name for name in empty if table.missing(name).all()), None)
    elif trains and inputs.target is None:
        usual = [name for name in USUAL_TARGETS if name in columns]
        chosen["target"] = target or (usual[0] if len(usual) == 1 else None)
        if chosen["target"] is None:
            option = f"--target.{WITHOUT_LABELS}"
            found.add(_open(source, "the column to predict", option, columns))
    found.raise_any()
    return inputs.model_copy(update=chosen)


def left_open(inputs: Inputs, *, trains: bool = True) -> BadTable | None:
    """The columns that a study has to name, or this site; None if both are known.

    A column that the site names and its table lacks is raised: no study can mend that.
    """
    table = read_table(inputs.table, None, inputs.na_values, inputs.notation)
    faults = Faults()
    if inputs.id is not None:
        with faults.caught():
            table.with_id(inputs.id).require([inputs.id], "the id column")
    if trains and inputs.labels and inputs.target is not None:
        with faults.caught():
            table.require([inputs.target], "the target", WITHOUT_LABELS)
    faults.raise_any()
    try:
        named(inputs, trains=trains)
    except BadTable as columns:
        return columns
    return None


def _open(source: str, what: str, option: str, columns: list[str]) -> Fault:
    asked = f"which is {what}? The columns: {some(columns, 30)}."
    return Fault(source, asked, f"Name it with {option}", kind="column")
