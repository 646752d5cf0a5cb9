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
from coreg_core.objectives.alignment import IdRule
from coreg_wire.files.disk import write_whole
from site_agent.data.columns import named
from site_agent.data.errors import Faults
from site_agent.data.inputs import Inputs
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.shared_set import SharedIds, SiteTable, ids_digest, load_site_tables, own_name, read_ids
from site_agent.data.sources import files_of
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


def prepare(inputs: Inputs, salt: bytes = b"", aligned: SharedIds | None = None) -> Prepared:
    """Read and preprocess a site's tables; ``aligned``: the ids that it shares.

    Raises
    ------
    BadTable
        all faults of the tables, with file, line and column.
    """
    found = Faults()
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
                "backup (docs/how-to/operate-a-site.md)."
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

    def __init__(
        self,
        inputs: Mapping[str, Inputs],
        salt: bytes,
        read: Callable[[Inputs, bytes, SharedIds | None], Prepared] = prepare,
    ):
        self._inputs, self.salt, self._prepare = dict(inputs), salt, read
        self._known: dict[str, tuple[tuple[Inputs, Stamp, SharedIds | None], Prepared]] = {}
        self._ids: dict[tuple[str, IdRule], tuple[tuple[Inputs, Stamp], tuple[str, ...]]] = {}
        self._named: dict[str, tuple[tuple[Inputs, Stamp, str, str, bool], Inputs]] = {}
        self._lock = threading.Lock()  # a run that needs a data set waits until it is read

    def relist(self, inputs: Mapping[str, Inputs]) -> None:
        """Replace the list of data sets, and drop those from the cache that it no longer has."""
        self._inputs = dict(inputs)
        self._known = {name: known for name, known in self._known.items() if name in inputs}
        self._ids.clear()
        self._named.clear()

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
        """How to read a data set, as the site says it."""
        return self._inputs[name]

    def named(self, name: str, target: str = "", id_column: str = "", *, trains: bool = True) -> Inputs:
        """... with the columns that the site leaves open: see `columns.named`."""
        inputs = self._inputs[name]
        known = (inputs, _stamp(inputs), target, id_column, trains)
        if name not in self._named or self._named[name][0] != known:
            self._named[name] = known, named(inputs, target, id_column, trains=trains)
        return self._named[name][1]

    def ids(self, name: str, inputs: Inputs, rule: IdRule) -> tuple[str, ...]:
        """The distinct ids of a data set, see `read_ids`."""
        with self._lock:
            known = (inputs, _stamp(inputs))
            if (name, rule) not in self._ids or self._ids[name, rule][0] != known:
                self._ids[name, rule] = known, read_ids(inputs, rule)
            return self._ids[name, rule][1]

    def get(self, name: str, inputs: Inputs | None = None, aligned: SharedIds | None = None) -> tuple[Prepared, bool]:
        """A data set as it is on the disk now, and whether it was read again; ``inputs`` as from `named`.

        Raises
        ------
        BadData
            the data set cannot be used. The text can name rows, so it must not leave the site.
        """
        with self._lock:
            inputs = self._inputs[name] if inputs is None else inputs
            stamp = _stamp(inputs)
            asked = (inputs, stamp, aligned)
            if (known := self._known.get(name)) is not None and known[0] == asked:
                return known[1], False
            prepared = self._prepare(inputs, self.salt, aligned)
            if _stamp(inputs) != stamp:
                raise BadData(
                    f"{inputs.table}: the file changed during reading. Write a new file beside it, then rename that."
                )
            self._known[name] = asked, prepared
            return prepared, True


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
