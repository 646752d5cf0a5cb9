r"""A fingerprint as words to read out over the telephone.

Words are proquints (Wilkerson, "A Proposal for Proquints", arXiv:0901.4016): each word of five letters has sixteen bits,
with alternating consonants and vowels.
"""

_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"
_SPOKEN = 32  # hexadecimal digits: 128 bits, eight words


def words(fingerprint: str) -> str:
    """The first 128 bits of a fingerprint as words: enough to prevent a second key with the same words."""
    numbers = [int(fingerprint[i : i + 4], 16) for i in range(0, _SPOKEN, 4)]
    return "-".join(_word(number) for number in numbers)


def _word(number: int) -> str:
    shifts = ((12, _CONSONANTS, 15), (10, _VOWELS, 3), (6, _CONSONANTS, 15), (4, _VOWELS, 3), (0, _CONSONANTS, 15))
    return "".join(letters[number >> shift & mask] for shift, letters, mask in shifts)
