"""What operators tell each other: an invitation (docs/reference/protocol.md, Enrolment), and the
eight words of a study.

The words stand for the authority, the names of all sites and their public keys:

    scrypt(authority, name₁, key₁, …, name_M, key_M; N = 2¹⁴, r = 8)  →  128 bits  →  eight words

The operators compare them once, by telephone. Two sets of keys with the same words cost 2⁶⁴
evaluations of scrypt. Words are proquints (Wilkerson, "A Proposal for Proquints", arXiv:0901.4016):
five letters, alternating consonants and vowels, for 16 bits.
"""

import hmac
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from coreg_core.errors import UsageError
from coreg_core.names import check_site_name

SCHEME = "coreg://"
_AUTHORITY = re.compile(r"[0-9a-f]{64}")
_SECRET = re.compile(r"[0-9a-f]{32}")
# No part of an invitation has a quote or an angle bracket; mail programs put them around it.
_LINE = re.compile(r"""(?<!\w)coreg://[^\s"'`<>“”„‘’«»]*""")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
# Letters of any alphabet: a letter that no word has must not split one.
_LETTERS = re.compile(r"[^\W\d_]+")
_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aiou"
_AGAIN = "Copy the whole line again from the coordinator's operator."


@dataclass(frozen=True)
class Invitation:
    """See the module's docstring. ``str`` gives the line, with the secret; ``repr`` hides it."""

    host: str
    port: int
    site: str
    authority: str
    secret: str = field(repr=False)

    def __str__(self) -> str:
        return f"{SCHEME}{self.address}/{self.site}#{self.authority}.{self.secret}"

    @property
    def address(self) -> str:
        """HOST:PORT of the coordinator, as in agent.toml."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def enrolment_port(self) -> int:
        """The port where the coordinator answers invitations."""
        return self.port + 1


def invitation_in(text: str) -> str | None:
    """The first invitation in a text, without the quotes, brackets or byte order mark around it."""
    match = _LINE.search(text)
    if match is None:
        return None
    return match[0].rstrip(".,;:)")


def parse_invitation(text: str) -> Invitation:
    """The invitation in a line. UsageError: what is wrong with it, without its secret."""
    line = invitation_in(text)
    if line is None:
        raise UsageError(f"The invitation does not begin with {SCHEME}. {_AGAIN}")
    where, hash_sign, key = line.removeprefix(SCHEME).partition("#")
    address, slash, site = where.partition("/")
    host, colon, port = address.rpartition(":")
    authority, dot, secret = key.partition(".")
    if not (hash_sign and dot and _SECRET.fullmatch(secret)):
        raise UsageError(
            f"The end of the invitation is missing or damaged (#FINGERPRINT.SECRET). {_AGAIN}"
        )
    if _AUTHORITY.fullmatch(authority) is None:
        raise UsageError(f"The invitation's fingerprint is not 64 hexadecimal digits. {_AGAIN}")
    if not (colon and _HOST.fullmatch(host) and _PORT.fullmatch(port) and int(port) < 65535):
        raise UsageError(
            f"The invitation has no HOST:PORT of a coordinator after {SCHEME}. {_AGAIN}"
        )
    if not slash:
        raise UsageError(f"The invitation names no site. {_AGAIN}")
    return Invitation(host.strip("[]"), int(port), check_site_name(site), authority, secret)


def proof(secret: str, site: str, request_pem: str) -> str:
    """The proof that the sender of this request has the secret.

    It serves for no other site and no other request.
    """
    statement = "\0".join(("coreg enrolment 1", site, request_pem))  # a site's name has no \0
    return hmac.digest(bytes.fromhex(secret), statement.encode(), "sha256").hex()


# --- the eight words ------------------------------------------------------------------------------


def eight_words(authority: str, keys: Mapping[str, str]) -> str:
    """Of an authority's fingerprint, and the fingerprints of the sites' keys by name."""
    statement = json.dumps(
        ["coreg members 1", authority, sorted(keys.items())], separators=(",", ":")
    )
    digest = Scrypt(salt=b"coreg eight words", length=16, n=2**14, r=8, p=1).derive(
        statement.encode()
    )
    return " ".join(_word(int.from_bytes(digest[i : i + 2], "big")) for i in range(0, 16, 2))


def words_in(text: str) -> list[str]:
    """The words of a text as people write it: letters alone count, and their case does not.

    So commas, quotes, dashes and the numbers of lines do not matter.
    """
    return _LETTERS.findall(unicodedata.normalize("NFKC", text).lower())


def same_words(one: str, other: str) -> bool:
    """Whether an operator wrote the same words; see `words_in`."""
    return words_in(one) == words_in(other)


def _word(number: int) -> str:
    shifts = (
        (12, _CONSONANTS, 15),
        (10, _VOWELS, 3),
        (6, _CONSONANTS, 15),
        (4, _VOWELS, 3),
        (0, _CONSONANTS, 15),
    )
    return "".join(letters[number >> shift & mask] for shift, letters, mask in shifts)
