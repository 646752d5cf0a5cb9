r"""The eight words of a study: they stand for the authority, the names of all sites and their public keys.

    scrypt(authority, name₁, key₁, …, name_M, key_M; N = 2¹⁴, r = 8)  →  128 bits  →  eight words

The operators compare them once, by telephone. Two sets of keys with the same words cost 2⁶⁴ evaluations of scrypt. Words are
proquints (Wilkerson, "A Proposal for Proquints", arXiv:0901.4016): five letters, alternating consonants and vowels, for 16 bits.
"""

import json
from collections.abc import Mapping

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"
_BYTES = 16


def eight_words(authority: str, keys: Mapping[str, str]) -> str:
    """Of an authority's fingerprint, and the fingerprints of the sites' keys by name."""
    statement = json.dumps(["coreg members 1", authority, sorted(keys.items())], separators=(",", ":"))
    digest = Scrypt(salt=b"coreg eight words", length=_BYTES, n=2**14, r=8, p=1).derive(statement.encode())
    return " ".join(_word(int.from_bytes(digest[i : i + 2], "big")) for i in range(0, _BYTES, 2))


def same_words(one: str, other: str) -> bool:
    """Whether an operator wrote the same words: hyphens, spaces and case do not matter."""
    return one.lower().replace("-", " ").split() == other.lower().replace("-", " ").split()


def _word(number: int) -> str:
    shifts = ((12, _CONSONANTS, 15), (10, _VOWELS, 3), (6, _CONSONANTS, 15), (4, _VOWELS, 3), (0, _CONSONANTS, 15))
    return "".join(letters[number >> shift & mask] for shift, letters, mask in shifts)
