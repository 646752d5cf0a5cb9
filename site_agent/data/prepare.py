"""From the operator's files to the arrays that the machine computes with, and the notes that the operator should read.

What is shared with nobody stays here: rows, ids, columns.
"""

import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from coreg_core.errors import StorageError, UsageError
from site_agent.data.errors import Faults
from site_agent.data.inputs import Inputs
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.shared_set import SiteTable, ids_digest, load_site_tables, names_of
from site_agent.machine.site_data import PrivateData, row_keys


@dataclass(frozen=True)
class Prepared:
    """The arrays, how they were made, and what to tell the operator."""

    data: PrivateData
    preprocessing: Preprocessing
    table: SiteTable
    notes: tuple[str, ...]


def prepare(inputs: Inputs, salt: bytes = b"") -> Prepared:
    """Read, align, preprocess.

    Raises
    ------
    UsageError
        the inputs name no target: they are a table to score.
    BadTable
        everything that cannot be used, with file, line and column.
    """
    if inputs.target is None:
        raise UsageError(f"{inputs.table}: training needs the column to predict (target).")
    found = Faults()
    table = load_site_tables(
        inputs.table,
        inputs.target,
        inputs.id,
        unlabelled=inputs.unlabelled,
        drop=inputs.drop,
        labels=inputs.labels,
        na_values=inputs.na_values,
        found=found,
    )
    with found.caught():
        preprocessing = replace(
            Preprocessing.fit(table, categorical=inputs.categorical, dates=inputs.dates, scale=inputs.scale),
            na_values=inputs.na_values,
        )
    found.raise_any()
    digest = ids_digest(table.unlabelled_ids)
    data = PrivateData(
        X=preprocessing.transform(table.labelled),
        y=table.y,
        Z=preprocessing.transform(table.unlabelled),
        ids_digest=digest,
        salt=salt,
        positions=table.positions,
        row_keys=row_keys(table.labelled_ids, table.y, salt),
        instances=names_of(digest, salt),
        ids=table.unlabelled_ids,
    )
    return Prepared(data, preprocessing, table, (*table.notes, *preprocessing.notes))


def site_salt(path: Path) -> bytes:
    """The site's secret for its data digest: made once, mode 0600, never sent.

    Raises
    ------
    StorageError
        it can be neither read nor made.
    """
    try:
        if path.exists():
            return path.read_bytes()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        salt = secrets.token_bytes(32)
        path.touch(mode=0o600)
        path.write_bytes(salt)
    except OSError as error:
        raise StorageError(f"{path}: cannot be used ({error.strerror}).") from None
    return salt
