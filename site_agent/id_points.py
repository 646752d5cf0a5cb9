r"""Ids as points of Curve25519, and multiplication of lists of points (u-coordinates, 32 bytes
each).

    point(id) = the first u on the curve among SHA-256(name, id, 0), SHA-256(name, id, 1), …

A hash taken as a u-coordinate is on the curve or on its twist, and multiplication keeps which: it
would disclose one bit of every id. Therefore u is tried until u³ + Au² + u is a square. No multiple
of the base point is known of such a point.

X25519 multiplies by 2²⁵⁴ + 8k. So it removes a small-order part, and products commute:

    start_v = c_v,   pass_v = a_v,   end_v = a_v / c_v  (mod ℓ)          every list ends as
    point(id)^(a_1 ⋯ a_M)

The owner multiplies first and last, so no other site sees a list's final points.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import gmpy2  # type: ignore[import-untyped]
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from jaxtyping import UInt8

from coreg_core.errors import BadData

P = 2**255 - 19
A = 486662
ORDER = 2**252 + 27742317777372353535851937790883648493  # ℓ, of the base point
POINT = 32  # bytes
Points = UInt8[np.ndarray, "n 32"]


@dataclass(frozen=True)
class Exponents:
    """A site's secret scalars for one alignment: for its own list first and last, and for the other
    sites' lists.
    """

    start: bytes
    passing: bytes
    end: bytes


def exponents(seed: bytes) -> Exponents:
    """From a secret: the same seed gives the same scalars, so that a repeated step gets the same
    bytes.
    """
    passing = _clamped(hashlib.sha256(b"coreg alignment passing" + seed).digest())
    for tried in count():
        start = _clamped(
            hashlib.sha256(b"coreg alignment start" + tried.to_bytes(4, "little") + seed).digest()
        )
        wanted = passing * pow(start, -1, ORDER) % ORDER
        # The only multiple of 8 below 8ℓ that is `wanted` mod ℓ; X25519 takes it as it is if its
        # highest bit is 2²⁵⁴.
        end = wanted + ORDER * (-wanted * pow(ORDER, -1, 8) % 8)
        if 2**254 <= end < 2**255:
            return Exponents(*(x.to_bytes(POINT, "little") for x in (start, passing, end)))
    raise AssertionError("half of all starts have an end")


def _clamped(secret: bytes) -> int:
    return int.from_bytes(secret, "little") & ~7 & (2**254 - 1) | 2**254


def point_of(text: str, name: str) -> bytes:
    """The point of an id in the alignment of that name."""
    prefix = hashlib.sha256(
        b"coreg alignment 1\0" + hashlib.sha256(name.encode()).digest() + text.encode()
    ).digest()
    for tried in count():
        digest = hashlib.sha256(prefix + tried.to_bytes(4, "little")).digest()
        u = int.from_bytes(digest, "little") & (2**255 - 1)
        if u < P and gmpy2.jacobi(u * (u * (u + A) + 1) % P, P) == 1:
            return u.to_bytes(POINT, "little")
    raise AssertionError("half of all numbers are on the curve")


def points_of(texts: Sequence[str], name: str) -> Points:
    joined = b"".join(point_of(text, name) for text in texts)
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, POINT)


def multiplied(points: Points, scalar: bytes) -> Points:
    """Each point times the scalar, in the same order."""
    key = X25519PrivateKey.from_private_bytes(scalar)
    data = points.tobytes()
    try:
        out = b"".join(
            key.exchange(X25519PublicKey.from_public_bytes(data[i : i + POINT]))
            for i in range(0, len(data), POINT)
        )
    except ValueError:
        raise BadData("some site sent a list with a point that no id has.") from None
    return np.frombuffer(out, dtype=np.uint8).reshape(-1, POINT)
