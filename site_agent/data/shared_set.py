"""A site's table parted: its own labelled rows, and the shared unlabelled instances in the order that every site has them in.

Ids are text everywhere: stripped, NFC-normalised, sorted by their UTF-8 bytes, so that neither file order nor a guessed type
can matter. Knows tables; nothing of encoding, kernels or rounds.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData
from site_agent.data.tables import SHOWN, Table, read_table


@dataclass(frozen=True)
class SiteTable:
    """A site's rows: labelled with their targets, and the shared unlabelled ones, sorted by id.

    ``positions``: where each labelled row stands among the shared ones, where all of them do.
    """

    labelled: Table
    y: Arr
    unlabelled: Table
    unlabelled_ids: tuple[str, ...]
    notes: tuple[str, ...]
    positions: Ints | None = None
    labelled_ids: tuple[str, ...] = ()

    @property
    def features(self) -> list[str]:
        """The feature columns."""
        return self.labelled.columns


def load_site_tables(
    data: Path,
    target: str,
    id_column: str,
    *,
    unlabelled: Path | None = None,
    drop: Sequence[str] = (),
    labels: bool = True,
) -> SiteTable:
    """A site's labelled and unlabelled rows; without ``labels`` every row is shared, and the target may be no column.

    Rows of ``data`` with an empty target are the shared unlabelled set, unless ``unlabelled`` names a file; such
    rows are then left out, with a note.

    Raises
    ------
    BadData
        see `read_table`; a column that is missing, a target that is no number, an id that is missing or stands
        twice among the unlabelled rows, or no row of either kind.
    """
    table = read_table(data)
    if labels:
        table.require([target], "the target")
    table.require([id_column], "the id column")
    table.require(list(drop), "to be dropped")
    if target == id_column:
        raise BadData(f"{data}: {target!r} is named as target and as id column.")
    y = table.numbers(target) if target in table.columns else np.full(len(table), np.nan)
    features = [name for name in table.columns if name not in {target, id_column, *drop}]
    if not features:
        raise BadData(f"{data}: no feature column is left beside {target!r} and {id_column!r}.")
    labelled, empty = np.flatnonzero(~np.isnan(y)), np.flatnonzero(np.isnan(y))
    notes: list[str] = []
    if labels and len(labelled) == 0:
        raise BadData(
            f"{data}: no row has a value in {target!r}; a site needs labelled rows of its own. Under the additive objective it "
            "may take part without any: --no-labels says so."
        )
    if not labels and len(labelled):
        raise BadData(f"{data}: {len(labelled)} rows have a value in {target!r}, and --no-labels says that none has.")
    if unlabelled is None:
        shared = table.rows(empty)
        if len(shared) == 0:
            raise BadData(
                f"{data}: no row has an empty {target!r}, so there are no shared unlabelled instances. "
                "Add them with an empty target, or name their table with --unlabelled."
            )
    else:
        shared = read_table(unlabelled)
        shared.require([id_column], "the id column")
        shared.require(features, f"features of {data}")
        if len(empty):
            notes.append(
                f"{data}: {len(empty)} rows without a target are left out, since --unlabelled names the shared set"
            )
        if extra := [c for c in shared.columns if c not in {*features, id_column, target, *drop}]:
            notes.append(f"{unlabelled}: columns that {data} does not have are not used: {', '.join(extra[:SHOWN])}")
    own_ids = tuple(table.rows(labelled).ids(id_column))
    ids = _checked_ids(shared, id_column)
    order = np.array(sorted(range(len(ids)), key=lambda i: ids[i].encode()), dtype=np.int64)
    shared_ids = tuple(ids[i] for i in order)
    return SiteTable(
        labelled=table.rows(labelled).select(features),
        y=np.ascontiguousarray(y[labelled]),
        unlabelled=shared.rows(order).select(features),
        unlabelled_ids=shared_ids,
        notes=tuple(notes),
        positions=_positions(own_ids, shared_ids),
        labelled_ids=own_ids,
    )


def load_batch(path: Path, id_column: str) -> tuple[Table, tuple[str, ...]]:
    """A table of instances to be scored together, and their ids, both in the order that every site has them in.

    Raises
    ------
    BadData
        see `read_table`; an id that is missing, or stands twice.
    """
    table = read_table(path)
    table.require([id_column], "the id column")
    ids = _checked_ids(table, id_column)
    order = np.array(sorted(range(len(ids)), key=lambda i: ids[i].encode()), dtype=np.int64)
    return table.rows(order), tuple(ids[i] for i in order)


def _positions(own: Sequence[str], shared: Sequence[str]) -> Ints | None:
    """Where each id stands among the shared ones; None where one does not, or there is none."""
    where = {text: i for i, text in enumerate(shared)}
    found = [where.get(text, -1) for text in own]
    return np.array(found, dtype=np.int64) if found and min(found) >= 0 else None


def _checked_ids(table: Table, column: str) -> list[str]:
    ids = table.ids(column)
    if empty := [str(table.lines[i]) for i, text in enumerate(ids) if not text]:
        raise BadData(
            f"{table.source}, line {', '.join(empty[:SHOWN])}: a shared instance without an id in {column!r}."
        )
    first: dict[str, int] = {}
    for i, text in enumerate(ids):
        if text in first:
            raise BadData(
                f"{table.source}, lines {table.lines[first[text]]} and {table.lines[i]}: the id {text!r} stands twice "
                "among the shared instances. Each is shared once."
            )
        first[text] = i
    return ids


def ids_digest(ids: Sequence[str]) -> str:
    """SHA-256 (hex) over the ordered ids, each after its length, so that no two lists run together."""
    digest = hashlib.sha256()
    for text in ids:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def keyed(digest: str, secret: str) -> str:
    """HMAC-SHA256 (hex) of that digest: confirms no guess to whoever does not have the sites' secret."""
    return hmac.new(secret.encode(), digest.encode(), hashlib.sha256).hexdigest()
