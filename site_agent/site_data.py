"""A site's private arrays, which never leave it."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.arrays import Arr, Ints
from coreg_core.secure.cross_products import normal


@dataclass(frozen=True)
class PrivateData:
    """The preprocessed labelled rows, the label column in its own units, the unlabelled rows."""

    X: Float64[Arr, "n d"]
    y: Float64[Arr, " n"]
    Z: Float64[Arr, "m d"]
    ids_digest: str
    salt: bytes = b""  # a secret of the site, so that its data digest confirms no guess
    positions: Int64[Ints, " n"] | None = (
        None  # of each labelled row among the shared instances; -1: it is none
    )
    row_keys: tuple[str, ...] = ()  # names of labels in the ledger; empty without one
    instances: str = ""  # their name in the ledger, independent of the digest that leaves
    ids: tuple[str, ...] = ()  # of the unlabelled rows, in their order
    positive: str = ""  # the value of a yes/no target that ``y`` has as 1
    negative: str = ""  # the other value, if a labelled row has it
    classes: tuple[str, ...] = ()  # of which ``y`` has the places
    score_sites: int | None = 3  # the fewest of a joint score with this site; None: no scores
    target: str = ""  # the column of ``y``

    def digest(self, run: str) -> str:
        """Salted with the site's secret and the run: it shows changed rows, and reveals nothing."""
        digest = hashlib.sha256(self.salt + run.encode() + self.ids_digest.encode())
        for array in (self.X, self.y, self.Z):
            digest.update(np.ascontiguousarray(array).tobytes())
            digest.update(str(array.shape).encode())
        return digest.hexdigest()


def row_keys(ids: Sequence[str], y: Float64[Arr, " n"], salt: bytes) -> tuple[str, ...]:
    """A name for each label: the salted digest of its row's id and value.

    A corrected label has another name.
    """
    return tuple(
        hashlib.sha256(salt + f"label {len(text)} {text} {value!r}".encode()).hexdigest()[:24]
        for text, value in zip(ids, y.tolist(), strict=True)
    )


def secret_of(salt: bytes, use: bytes, *about: bytes) -> bytes:
    """Of a site's secret, for one use and context."""
    text = b"".join(len(part).to_bytes(8, "little") + part for part in (use, *about))
    return hmac.new(salt, text, hashlib.sha256).digest()


def keyed(secret: bytes, *about: bytes) -> bytes:
    """8 bytes that name something in this site's records, and tell nothing without its secret."""
    text = b"".join(len(part).to_bytes(8, "little") + part for part in about)
    return hashlib.sha256(secret + text).digest()[:8]


def uniforms(secrets: Sequence[bytes]) -> Arr:
    """(n, 2): two numbers from 0 (excluded) to 1 of each secret (32 bytes).

    The small ones have 53 bits too: a number has 128 random bits.
    """
    words = np.frombuffer(b"".join(secrets), dtype="<u8").reshape(-1, 2, 2)
    return np.asarray(np.ldexp(words[..., 0] + np.ldexp(words[..., 1] + 0.5, -64), -64))


def normals(secrets: Sequence[bytes]) -> Arr:
    """A standard normal number of each secret (16 bytes or more)."""
    halves = b"".join(s[:8] for s in secrets) + b"".join(s[8:16] for s in secrets)
    return normal((len(secrets),), lambda _: halves)
