"""Read the operator's files into the arrays of a run, with notes for the operator. Rows, ids and columns stay at the site.

A data set is read when a run needs it, and read again if its file has changed. A run in progress keeps the data with which it
began.
"""

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.objectives.alignment import IdRule
from coreg_wire.files.disk import write_whole
from site_agent.data.errors import Fault, Faults, some
from site_agent.data.inputs import Inputs
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.shared_set import SharedIds, SiteTable, ids_digest, load_site_tables, own_name, read_ids
from site_agent.data.sources import files_of
from site_agent.data.tables import read_table
from site_agent.site_data import PrivateData, row_keys

Stamp = tuple[tuple[int, int, int], ...]
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


def prepare(inputs: Inputs, salt: bytes = b"", aligned: SharedIds | None = None) -> Prepared:
    """Read and preprocess a site's tables; ``aligned``: the ids that it shares."""
    found = Faults()
    table = load_site_tables(inputs, aligned, found)
    with found.caught():
        preprocessing = replace(
            Preprocessing.fit(
                table.labelled, table.unlabelled, categorical=inputs.categorical, dates=inputs.dates, scale=inputs.scale
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


def site_salt(path: Path, ledger: Path) -> bytes:
    """The site's secret for its data digest. It is created once (mode 0600) and never sent.

    The ledger names instances under it: with another secret the agent would not know them again.
    """
    try:
        if path.exists():
            return path.read_bytes()
        if ledger.exists() and ledger.stat().st_size:
            raise StorageError(
                f"{path} is missing, and {ledger} has answers whose instances are named under it. Restore both from the same "
                "backup (docs/how-to/operate-a-site.md)."
            )
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        salt = secrets.token_bytes(32)
        write_whole(path, salt, mode=0o600)  # synced before the ledger's first line, which needs it
    except OSError as error:
        raise StorageError(f"{path}: cannot be used ({error.strerror}).") from None
    return salt


class DataSets:
    """Reads data sets on demand, and keeps what it read until the file, its settings or the question change."""

    def __init__(
        self,
        inputs: Mapping[str, Inputs],
        salt: bytes,
        read: Callable[[Inputs, bytes, SharedIds | None], Prepared] = prepare,
    ):
        self._inputs, self.salt, self._prepare = dict(inputs), salt, read
        self._known: dict[tuple[str, ...], tuple[Any, Any]] = {}  # from what it was made, and it
        self._lock = threading.RLock()  # a run that needs a data set waits until it is read

    def relist(self, inputs: Mapping[str, Inputs]) -> None:
        self._inputs = dict(inputs)
        self._known = {key: known for key, known in self._known.items() if key[0] in inputs}

    def choose(self, name: str) -> str:
        """The data set of a plan: the one that it names, or the only one if it names none. The error leaves the site."""
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
        return self._inputs[name]

    def named(self, name: str, target: str = "", id_column: str = "", *, trains: bool = True) -> Inputs:
        """... with the columns that the site leaves open: see `named`."""
        inputs = self._inputs[name]
        asked = (inputs, target, id_column, trains)
        return self._made((name, "named"), inputs, asked, lambda: named(inputs, target, id_column, trains=trains))[0]

    def ids(self, name: str, inputs: Inputs, rule: IdRule) -> tuple[str, ...]:
        return self._made((name, "ids", rule), inputs, inputs, lambda: read_ids(inputs, rule))[0]

    def get(self, name: str, inputs: Inputs | None = None, aligned: SharedIds | None = None) -> tuple[Prepared, bool]:
        """A data set as it is on the disk now, and whether it was read again; ``inputs`` as from `named`.

        Its errors can name rows, so they must not leave the site.
        """
        own = self._inputs[name] if inputs is None else inputs
        return self._made((name, "rows"), own, (own, aligned), lambda: self._prepare(own, self.salt, aligned))

    def _made(self, key: tuple[str, ...], inputs: Inputs, asked: Any, make: Callable[[], T]) -> tuple[T, bool]:
        """``make()`` or what it made before from the same question and files; and whether it is new."""
        with self._lock:
            stamp = _stamp(inputs)
            if (known := self._known.get(key)) is not None and known[0] == (asked, stamp):
                return known[1], False
            made = make()
            if _stamp(inputs) != stamp:
                raise BadData(
                    f"{inputs.table}: the file changed during reading. Write a new file beside it, then rename that."
                )
            self._known[key] = (asked, stamp), made
            return made, True


def _stamp(inputs: Inputs) -> Stamp:
    sources = [each for each in (inputs.table, inputs.unlabelled) if each is not None]
    return tuple(_of(path) for source in sources for path in files_of(source))


def _of(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise BadData(f"{path}: no such file. Correct the path.") from None
    except OSError as error:
        raise BadData(f"{path}: cannot be read ({error.strerror}).") from None
    return found.st_ino, found.st_size, found.st_mtime_ns


# --- the columns that a site leaves open ------------------------------------------------------------------------------

USUAL_TARGETS = ("y", "target", "label")
USUAL_ID = "id"


def named(inputs: Inputs, target: str = "", id_column: str = "", *, trains: bool = True) -> Inputs:
    """The inputs with both columns; ``target`` and ``id_column`` are the study's, "" where it names none."""
    open_target = trains and inputs.target is None and inputs.labels
    if inputs.id is not None and not open_target:
        return inputs
    columns = list(dict.fromkeys(read_table(inputs.table, Faults(), inputs.na_values, inputs.notation).columns))
    found, source = Faults(), str(inputs.table)
    chosen = {"id": inputs.id, "target": inputs.target}
    if inputs.id is None:
        ends = [name for name in columns if name.endswith("_id")]
        usual = [USUAL_ID] if USUAL_ID in columns else ends
        chosen["id"] = id_column or (usual[0] if len(usual) == 1 else None)
        if chosen["id"] is None:
            found.add(_open(source, "the id column", "--id", columns))
    if open_target:
        usual = [name for name in USUAL_TARGETS if name in columns]
        chosen["target"] = target or (usual[0] if len(usual) == 1 else None)
        if chosen["target"] is None:
            found.add(_open(source, "the column to predict", "--target", columns))
    found.raise_any()
    return inputs.model_copy(update=chosen)


def _open(source: str, what: str, option: str, columns: list[str]) -> Fault:
    return Fault(
        source, f"which is {what}? The columns: {some(columns, 30)}.", f"Name it with {option}.", kind="column"
    )
