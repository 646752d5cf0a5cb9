"""Ids of instances: how they are compared, their order, and the names of a set of them.

Ids are text: stripped, NFC-normalised, and sorted by their UTF-8 bytes. So the order of the file
and a guessed type cannot change them.
"""

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from coreg_core.arrays import Ints
from coreg_core.objectives.alignment import IdRule
from site_agent.data.notation import flag
from site_agent.data.sources import SHOWN, Faults, some
from site_agent.data.tables import Table

# How ids are compared under a rule, if not as they are written.
_COMPARED: Mapping[IdRule, str] = {
    "exact": "",
    "folded": " (compared without case and further spaces)",
    "numbers": " (compared without case, further spaces and leading zeros)",
}


def normalised(text: str, rule: IdRule) -> str:
    """An id by the rule: "exact" (NFC), "folded" (NFKC, no case or inner spaces), "numbers" (also
    no leading zeros).
    """
    if rule == "exact":
        return unicodedata.normalize("NFC", text).strip()
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    if rule == "numbers":
        return re.sub(r"(?<![0-9])0+(?=[0-9])", "", folded)
    return folded


def compared_ids(table: Table, column: str, rule: IdRule) -> list[str]:
    return [normalised(text, rule) for text in table.ids(column)]


def unique_ids(table: Table, column: str, rule: IdRule, faults: Faults) -> list[str]:
    """The ids of all rows, normalised; an empty one, and one that occurs twice, is a fault."""
    ids = compared_ids(table, column, rule)
    rows_of: dict[str, list[int]] = {}
    for row, text in enumerate(ids):
        rows_of.setdefault(text, []).append(row)
    empty = rows_of.pop("", [])
    repeated = {text: rows for text, rows in rows_of.items() if len(rows) > 1}
    todo = (
        "Keep one row of each individual, by a rule such as the latest visit. If each row is an"
        f" individual of its own, add a column to the id: {flag('id', f'{column}+NAME')}."
    )
    if empty:
        fault = table.fault(f"no id in {column!r}.", "", "missing", rows=empty)
        faults.add(replace(fault, about=column))
    duplicates = {
        f"the id {text!r} occurs {len(rows)} times{_COMPARED[rule]}.": rows
        for text, rows in repeated.items()
    }
    if len(repeated) > SHOWN:
        what = f"{len(repeated)} ids occur more than once{_COMPARED[rule]}: {some(repeated)}."
        duplicates = {what: list(chain.from_iterable(repeated.values()))}
    for what, rows in duplicates.items():
        fault = table.fault(what, todo, "duplicate", rows=rows)
        faults.add(replace(fault, about=column))
    return ids


def order_of(ids: Sequence[str]) -> Ints:
    """The order of the instances at every site: by the UTF-8 bytes of their ids."""
    encoded = [text.encode() for text in ids]
    order = sorted(range(len(ids)), key=encoded.__getitem__)
    return np.array(order, dtype=np.int64)


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
