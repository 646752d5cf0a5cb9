"""A site's private arrays, which never leave it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float64, Int64

from coreg_core.arrays import Arr, Ints
from coreg_core.secure.cross_products import normal


@dataclass(frozen=True)
class PrivateData:
    """The preprocessed labelled rows, the label column in its own units, the unlabelled rows.

    ``positions``: the index of each labelled row among the shared instances, -1 if it is none; None: none is.
    ``row_keys``: a name for each label, by which the ledger recognises it (`row_keys`); empty without a ledger.
    ``ids``: of the unlabelled rows, in their order. ``instances``: their name in this site's ledger, which is independent of
    the digest that leaves the site. ``positive``: the value of a yes/no target that ``y`` has as 1; "" for numbers.
    """

    X: Float64[Arr, "n d"]
    y: Float64[Arr, " n"]
    Z: Float64[Arr, "m d"]
    ids_digest: str
    salt: bytes = b""  # a secret of the site, so that its data digest confirms no guess
    positions: Int64[Ints, " n"] | None = None
    row_keys: tuple[str, ...] = ()
    instances: str = ""
    ids: tuple[str, ...] = ()
    positive: str = ""


def row_keys(ids: Sequence[str], y: Float64[Arr, " n"], salt: bytes) -> tuple[str, ...]:
    """A name for each label: the digest of its row's id and its value under the site's secret.

    A corrected label has another name. The salt prevents a reader of the ledger from testing guesses of ids and values.
    """
    return tuple(
        hashlib.sha256(salt + f"label {len(text)} {text} {value!r}".encode()).hexdigest()[:24]
        for text, value in zip(ids, y.tolist(), strict=True)
    )


def keyed(secret: bytes, *about: bytes) -> bytes:
    """8 bytes that name something in this site's records, and tell nothing without its secret."""
    text = b"".join(len(part).to_bytes(8, "little") + part for part in about)
    return hashlib.sha256(secret + text).digest()[:8]


def normals(secrets: Sequence[bytes]) -> Arr:
    """A standard normal number of each secret (16 bytes or more)."""
    halves = b"".join(s[:8] for s in secrets) + b"".join(s[8:16] for s in secrets)
    return normal((len(secrets),), lambda _: halves)
