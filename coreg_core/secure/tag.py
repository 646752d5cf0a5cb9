r"""An additive tag: the sites verify with it that the words of a sum are the sent words.

    tag_v = Σ_i c_{v,i} rⁱ mod p,    p = 2¹³⁰ − 5,    c_{v,i} = u_{2i} + 2⁶⁴ u_{2i+1} + 2¹²⁸,    u = n_v + 2⁶³

is Poly1305 (RFC 8439) of the words n_v with the second half of its key zero, r a secret of the sites for this sum alone.
It is linear in the words, so the tags' sum is the tag of the words' sum except for a public constant. The
party that adds the words does not know r, and sees tags under masks only. To have a changed sum of L words accepted, it must
guess a root of a polynomial of degree L/2 over p: at most one chance in 2¹⁰⁶/(8 L (3M + 4)) (Bernstein 2005,
"The Poly1305-AES message-authentication code", theorem 3.3; the factor 3M + 4 comes from truncation to 128 bits).
"""

import numpy as np
from jaxtyping import UInt64

from coreg_core.secure.sums import Words

_P = (1 << 130) - 5
_CLAMP = 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
_OFFSET = np.uint64(1 << 63)


def message(words: Words) -> UInt64[np.ndarray, " p"]:
    """The input bytes of Poly1305: non-negative numbers, an even count of them."""
    padded = np.zeros(len(words) + len(words) % 2, dtype=words.dtype)
    padded[: len(words)] = words
    padded += _OFFSET
    return padded


def tag_words(tag: bytes) -> Words:
    """Poly1305's 16 bytes, to be added as words."""
    return np.frombuffer(tag, dtype="<u4").astype("<u8")


def is_sum(tag: bytes, tags: Words, r: bytes, n_words: int, n_sites: int) -> bool:
    """Whether the tag of a sum's words equals the sum of the sites' tags.

    Parameters
    ----------
    tag
        Poly1305 of `message` of the sum's words.
    tags
        the sum of the sites' `tag_words`.
    r
        the first half of the key.
    n_words, n_sites
        of each summand, and the number of summands.
    """
    blocks, root = (n_words + 1) // 2, int.from_bytes(r, "little") & _CLAMP
    total = sum(word << (32 * i) for i, word in enumerate(tags.tolist()))
    # Each site's blocks hold one offset and one 2¹²⁸; the sum has them once for every site, and its own tag once.
    constant = (1 << 63) + (1 << 127) + (1 << 128)
    powers = root * (pow(root, blocks, _P) - 1) * pow(root - 1, -1, _P) if root > 1 else blocks * root
    missing = (int.from_bytes(tag, "little") + (n_sites - 1) * constant * powers - total) % _P
    # Tags are cut to 128 bits of 130: each can lose up to three times 2¹²⁸.
    return any((missing - j * (1 << 128)) % _P == 0 for j in range(-3, 3 * n_sites + 1))
