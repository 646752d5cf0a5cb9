"""A checksum for every value in the run store, so that reading detects damage by the disk."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from coreg_core.errors import CoregError

# Exceptions from reading a damaged plan.
UNREADABLE = (CoregError, ValueError, LookupError, TypeError, AttributeError)


class Damaged(ValueError):
    """A stored value differs from the written one."""


def add_json_checksum(value: dict[str, Any]) -> str:
    """The value and its checksum as JSON."""
    return json.dumps({"sha256": _digest(value), "value": value})


def verify_json_checksum(text: str) -> dict[str, Any]:
    """The inverse of `add_json_checksum`.

    Raises
    ------
    Damaged
        the checksum differs or is missing.
    """
    plain = json.loads(text)
    if not isinstance(plain, dict) or plain.keys() != {"sha256", "value"}:
        raise Damaged("a value without a checksum")
    value: dict[str, Any] = plain["value"]
    if plain["sha256"] != _digest(value):
        raise Damaged("a value whose checksum does not match")
    return value


def row_checksum(values: Iterable[Any]) -> str:
    """The checksum of a row of plain values, in the order of its columns."""
    return _digest(list(values))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
