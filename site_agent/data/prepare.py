"""Read the operator's files into the arrays of a run, with notes for the operator. Rows, ids and columns stay at the site.

A data set is read when a run needs it, and read again if its file has changed. A run in progress keeps the data with which it
began.
"""

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from coreg_core.errors import BadData, StorageError, UsageError
from coreg_wire.files.disk import write_whole
from site_agent.data.errors import Faults
from site_agent.data.inputs import Inputs
from site_agent.data.preprocessing import Preprocessing, kind_of_column
from site_agent.data.shared_set import SharedIds, SiteTable, ids_digest, load_site_tables, own_name
from site_agent.data.sources import Source, files_of
from site_agent.data.tables import read_table
from site_agent.site_data import PrivateData, row_keys

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Prepared:
    """The arrays, the preprocessing that made them, and notes for the operator."""

    data: PrivateData
    preprocessing: Preprocessing
    table: SiteTable
    notes: tuple[str, ...]

    @property
    def labelled_and_shared(self) -> list[str]:
        """The ids of labelled rows that are shared too."""
        return sorted({*self.table.labelled_ids} & {*self.table.unlabelled_ids})


def prepare(inputs: Inputs, salt: bytes = b"") -> Prepared:
    """Read and preprocess a site's tables.

    Raises
    ------
    UsageError
        the inputs name no target, so they are for scoring.
    BadTable
        all faults of the tables, with file, line and column.
    """
    if inputs.target is None:
        raise UsageError(f"{inputs.table}: training needs a target. Name the column to predict.")
    found = Faults()
    aligned = None if inputs.shared is None else SharedIds.read(Path(inputs.shared))
    table = load_site_tables(inputs, aligned, found)
    with found.caught():
        preprocessing = replace(
            Preprocessing.fit(
                table.labelled,
                table.unlabelled,
                categorical=inputs.categorical,
                dates=inputs.dates,
                scale=inputs.scale,
            ),
            na_values=inputs.na_values,
        )
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
    )
    return Prepared(data, preprocessing, table, (*table.notes, *table.doubts, *preprocessing.notes))


def notation_shown(source: Source) -> tuple[dict[str, str | dict[str, str]], tuple[str, ...]]:
    """What a table shows of its notation, as settings of a data set, and the faults of what it leaves open."""
    table, dates, found = read_table(source, Faults()), dict[str, str](), Faults()
    for name in dict.fromkeys(table.columns):
        with found.caught():
            if layout := kind_of_column(name, [table])[1]:
                dates[name] = layout
            if table.notation.decimal is None and table.is_numeric(name):
                table.numbers(name)
    shown: dict[str, str | dict[str, str]] = {"dates": dates}
    known = (table.notation.separator or ",", table.notation.decimal or ".")
    if isinstance(source, Path) and known != (",", "."):
        shown |= {"separator": known[0]} | ({"decimal": known[1]} if table.notation.decimal else {})
    open_ = ("date of two readings", "thousands or decimals", "decimal comma", "decimal point")
    return shown, tuple(fault.text for fault in found if fault.kind in open_)


def site_salt(path: Path, ledger: Path) -> bytes:
    """The site's secret for its data digest. It is created once (mode 0600) and never sent.

    The ledger names instances under it: with another secret the agent would not know them again.

    Raises
    ------
    StorageError
        the file can be neither read nor created; or it is missing, and the ledger has lines.
    """
    try:
        if path.exists():
            return path.read_bytes()
        if ledger.exists() and ledger.stat().st_size:
            raise StorageError(
                f"{path} is missing, and {ledger} has answers whose instances are named under it. Restore both from the same "
                "backup (docs/how-to/back-up-and-restore.md)."
            )
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        salt = secrets.token_bytes(32)
        write_whole(path, salt, mode=0o600)  # synced before the ledger's first line, which needs it
    except OSError as error:
        raise StorageError(f"{path}: cannot be used ({error.strerror}).") from None
    return salt


class DataSets:
    """Reads data sets on demand and caches them.

    Parameters
    ----------
    inputs
        data sets by name.
    salt
        the site's secret for its data digest.
    """

    def __init__(self, inputs: Mapping[str, Inputs], salt: bytes, read: Callable[[Inputs, bytes], Prepared] = prepare):
        self._inputs, self.salt, self._prepare = dict(inputs), salt, read
        self._known: dict[str, tuple[Inputs, Stamp, Prepared]] = {}
        self._lock = threading.Lock()  # a run that needs a data set waits until it is read

    def relist(self, inputs: Mapping[str, Inputs]) -> None:
        """Replace the list of data sets, and drop those from the cache that it no longer has."""
        self._inputs = dict(inputs)
        self._known = {name: known for name, known in self._known.items() if name in inputs}

    def choose(self, name: str) -> str:
        """The data set of a plan: the one that it names, or the only one if it names none.

        Raises
        ------
        UsageError
            there is no such data set. The coordinator receives this text, so it names no other data set.
        """
        if name in self._inputs:
            return name
        if "" in self._inputs or (not name and len(self._inputs) == 1):  # a table without a name is for every plan
            return next(iter(self._inputs))
        if not name:
            raise UsageError("the plan names no data set, and this site has several.")
        raise UsageError(
            f"this site has no data set {name!r}. Correct `data` of the study, or rename the section [data.NAME] in agent.toml."
        )

    def inputs(self, name: str) -> Inputs:
        """How to read a data set."""
        return self._inputs[name]

    def get(self, name: str) -> tuple[Prepared, bool]:
        """A data set as it is on the disk now, and whether it was read again.

        Raises
        ------
        BadData
            the data set cannot be used. The text can name rows, so it must not leave the site.
        """
        with self._lock:
            inputs = self._inputs[name]
            stamp = _stamp(inputs)
            known = self._known.get(name)
            if known is not None and known[:2] == (inputs, stamp):
                return known[2], False
            prepared = self._prepare(inputs, self.salt)
            if _stamp(inputs) != stamp:
                raise BadData(
                    f"{inputs.table}: the file changed during reading. Write a new file beside it, then rename that."
                )
            self._known[name] = (inputs, stamp, prepared)
            return prepared, True


def _stamp(inputs: Inputs) -> Stamp:
    files = [path for source in (inputs.table, inputs.unlabelled) if source is not None for path in files_of(source)]
    shared = [] if inputs.shared is None else [_of(Path(inputs.shared), "Correct `shared`, or run the alignment first")]
    return (*map(_of, files), *shared)


def _of(path: Path, todo: str = "Correct the path") -> tuple[int, int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise BadData(f"{path}: no such file. {todo}.") from None
    except OSError as error:
        raise BadData(f"{path}: cannot be read ({error.strerror}).") from None
    return found.st_ino, found.st_size, found.st_mtime_ns
