"""A checksum for whatever the run store keeps: a bit that the disk turned over is found when it is read, and not
believed.

What an earlier release kept without a seal is read as it is.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

_MAGIC = b"coreg\x001\n"  # no safetensors file begins so: its first eight bytes are a small length
_SIZE = hashlib.sha256().digest_size


class Damaged(ValueError):
    """What is kept is not what was written."""


def seal(data: bytes) -> bytes:
    """The bytes with their checksum before them."""
    return _MAGIC + hashlib.sha256(data).digest() + data


def unseal(data: bytes) -> bytes:
    """The inverse of `seal`.

    Raises
    ------
    Damaged
        the checksum is another.
    """
    if not data.startswith(_MAGIC):
        length = int.from_bytes(data[:8], "little")  # of a safetensors file's header, which is JSON
        if 2 <= length <= len(data) - 8 and data[8:9] == b"{":
            return data
        raise Damaged("a sealed value whose beginning was changed")
    body = data[len(_MAGIC) + _SIZE :]
    if hashlib.sha256(body).digest() != data[len(_MAGIC) : len(_MAGIC) + _SIZE]:
        raise Damaged("a value whose checksum does not fit")
    return body


def seal_json(value: dict[str, Any]) -> str:
    """The value as JSON with its checksum beside it."""
    return json.dumps({"sha256": _digest(value), "value": value})


def unseal_json(text: str) -> dict[str, Any]:
    """The inverse of `seal_json`.

    Raises
    ------
    Damaged
        the checksum is another.
    """
    plain = json.loads(text)
    if not isinstance(plain, dict):
        raise Damaged("a value that is no object")
    if plain.keys() != {"sha256", "value"}:
        return plain
    value: dict[str, Any] = plain["value"]  # beside its checksum
    if plain["sha256"] != _digest(value):
        raise Damaged("a value whose checksum does not fit")
    return value


def row_seal(values: Iterable[Any]) -> str:
    """The checksum of a row of plain values, in the order of its columns."""
    return _digest(list(values))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
