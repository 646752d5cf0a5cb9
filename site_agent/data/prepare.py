"""Read the operator's files into the arrays of a run, with notes for the operator. Rows, ids and columns stay at the site."""

import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from coreg_core.errors import StorageError, UsageError
from coreg_wire.files.files import write_whole
from site_agent.data.aligned import SharedIds
from site_agent.data.errors import Faults
from site_agent.data.inputs import Inputs
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.shared_set import SiteTable, ids_digest, load_site_tables, own_name
from site_agent.machine.site_data import PrivateData, row_keys


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
            Preprocessing.fit(table, categorical=inputs.categorical, dates=inputs.dates, scale=inputs.scale),
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
                "backup (docs/how-to/back-up-and-restore.md)."
            )
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        salt = secrets.token_bytes(32)
        write_whole(path, salt, mode=0o600)  # synced before the ledger's first line, which needs it
    except OSError as error:
        raise StorageError(f"{path}: cannot be used ({error.strerror}).") from None
    return salt
