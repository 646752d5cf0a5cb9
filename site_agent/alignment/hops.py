"""Lists on their way from site to site: sealed for the next one, in words that a sum of one answer carries.

All members receive the words of a hop. A key of the two sites, from X25519 keys of this alignment alone, keeps its points from
the others. The nonce is the place of a block, and AES-256-GCM-SIV (RFC 8452) stays safe if two texts have the same place.
"""

from collections.abc import Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from jaxtyping import Float64

from coreg_core.errors import BadData
from coreg_core.numerics.arrays import Arr
from site_agent.alignment.curve import POINT, Points

CHUNK = 6  # bytes in a word: float64 holds integers of 48 bits exactly
SEAL = 16  # bytes of the tag


def words_of(n_bytes: int) -> int:
    """The words of so many bytes."""
    return -(-n_bytes // CHUNK)


def packed(data: bytes) -> Float64[Arr, "w 1"]:
    """Bytes as whole numbers below 2⁴⁸."""
    padded = np.frombuffer(data.ljust(CHUNK * words_of(len(data)), b"\0"), dtype=np.uint8).reshape(-1, CHUNK)
    whole = np.zeros((len(padded), 8), dtype=np.uint8)
    whole[:, :CHUNK] = padded
    return whole.view("<u8").astype(np.float64)


def unpacked(words: Float64[Arr, "w 1"], n_bytes: int) -> bytes:
    """The inverse of `packed`.

    Raises
    ------
    BadData
        a number is no integer below 2⁴⁸.
    """
    whole = words.astype("<u8") if ((words >= 0.0) & (words < 2.0**48)).all() else None
    if whole is None or (whole != words).any():
        raise BadData("some site sent numbers that are no part of a list.")
    return np.ascontiguousarray(whole).view(np.uint8).reshape(-1, 8)[:, :CHUNK].tobytes()[:n_bytes]


def public_key(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


class Pairs:
    """Keys of this site with each other one.

    Parameters
    ----------
    secret, publics
        this site's X25519 key, and the public keys of all sites in site order.
    about
        what the keys are bound to: run and sites.
    """

    def __init__(self, secret: bytes, publics: Sequence[bytes], about: bytes):
        self._key, self._publics, self._about = X25519PrivateKey.from_private_bytes(secret), tuple(publics), about

    def _cipher(self, other: int, sender: int, receiver: int) -> AESGCMSIV:
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(self._publics[other]))
        except ValueError:
            raise BadData("some site published a key that is none.") from None
        info = self._about + f"{sender} to {receiver}".encode()
        return AESGCMSIV(HKDF(hashes.SHA256(), 32, None, b"coreg alignment hop" + info).derive(shared))

    def seal(self, points: Points, place: tuple[int, int, int], sender: int, receiver: int) -> Float64[Arr, "w 1"]:
        """A block of a list. A place (list, block, hop) is sealed once, and always with the same points."""
        cipher = self._cipher(receiver, sender, receiver)
        return packed(cipher.encrypt(_nonce(place), points.tobytes(), self._about))

    def open(self, words: Float64[Arr, "w 1"], count: int, place: tuple[int, int, int], sender: int, me: int) -> Points:
        """The points of a block.

        Raises
        ------
        BadData
            the block was not sealed for this place: cut, repeated, reordered or changed.
        """
        try:
            text = unpacked(words, POINT * count + SEAL)
            data = self._cipher(sender, sender, me).decrypt(_nonce(place), text, self._about)
        except InvalidTag:
            raise BadData("some site's list was changed on its way.") from None
        return np.frombuffer(data, dtype=np.uint8).reshape(count, POINT)


def _nonce(place: tuple[int, int, int]) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in place)
