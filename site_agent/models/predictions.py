"""Tables of predictions: CSV or Parquet, with ids, and private by their mode."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from coreg_core.errors import StorageError, UsageError
from coreg_core.numerics.arrays import Arr
from coreg_wire.files.disk import write_whole
from site_agent.data.notation import guarded

TABLES = (".csv", ".parquet", ".pq")


def check_predictions(
    path: Path, id_column: str | None = None, column: str = "prediction", read: Sequence[Path] = ()
) -> None:
    """Check before the work that predictions can be written, and that the file is none of those that are ``read``.

    Raises
    ------
    StorageError
        the folder does not exist.
    UsageError
        the suffix is neither .csv nor .parquet, the id column has the name of the predictions, or the file is an input.
    """
    if path.exists() and any(each.exists() and path.samefile(each) for each in read):
        raise UsageError(f"{path} is read by this command, and would be overwritten. Give another --output.")
    if not path.resolve().parent.is_dir():
        raise StorageError(f"{path.resolve().parent}: no such folder. Make it, or give another --output.")
    if path.suffix.lower() not in TABLES:
        raise _no_table(path)
    if id_column == column:
        raise UsageError(f"{path}: the id column has the name of the column of {column}s. Rename it in the table.")


def write_predictions(
    path: Path,
    predictions: Arr,
    *,
    ids: Sequence[str] | None = None,
    id_column: str | None = None,
    column: str = "prediction",
    beside: Mapping[str, Arr] | None = None,
) -> None:
    """Write a CSV or Parquet table: ids, if any, then predictions under ``column``, then the columns ``beside``.

    In a CSV file an id that a spreadsheet would run gets an apostrophe (`formulas`); `Table.ids` removes it. Predictions are
    personal data, so a new file has mode 0600. An existing file keeps its mode.

    Raises
    ------
    StorageError
        the file cannot be written.
    UsageError
        the suffix is wrong, ids and predictions differ in number, or the id column has the name of the predictions.
    """
    if ids is not None and len(ids) != len(predictions):
        raise UsageError(f"{path}: {len(ids)} ids for {len(predictions)} predictions. Every row needs an id.")
    if ids is not None and id_column in (column, *(beside or {})):
        raise UsageError(f"{path}: the id column has the name of the column of {column}s. Rename it in the table.")
    texts = [] if ids is None else [guarded(text) for text in ids] if path.suffix.lower() == ".csv" else list(ids)
    columns: dict[str, Any] = {} if ids is None else {id_column or "id": texts}
    frame = pl.DataFrame({**columns, column: predictions, **(beside or {})}).fill_nan(None)
    mode = path.stat().st_mode & 0o777 if path.is_file() else 0o600
    match path.suffix.lower():
        case ".csv":
            write_whole(path, frame.write_csv().encode(), mode=mode)
        case ".parquet" | ".pq":
            buffer = io.BytesIO()
            frame.write_parquet(buffer)
            write_whole(path, buffer.getvalue(), mode=mode)
        case _:
            raise _no_table(path)


def _no_table(path: Path) -> UsageError:
    return UsageError(f"{path}: predictions are written as .csv or .parquet. Give --output such a name.")
