"""Private keys in files: PEM, unencrypted with mode 0600 or encrypted with a passphrase.

PKCS#8 with `BestAvailableEncryption` of the cryptography library. The passphrase comes from a file, the environment or
a terminal, and is read only if a key is encrypted.
"""

import getpass
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as keys
from cryptography.hazmat.primitives.asymmetric import ec

from coreg_core.errors import BadData, Refused, UsageError

FILE_VARIABLE, VARIABLE = "COREG_PASSPHRASE_FILE", "COREG_PASSPHRASE"
LEAST = 12  # characters of a new passphrase
SOURCES = f"Put it into a file that {FILE_VARIABLE} names, or into {VARIABLE}, or type it at a terminal."
_ENCRYPTED = b"ENCRYPTED"

Passphrase: TypeAlias = Callable[[str], bytes]


def ask(what: str) -> bytes:
    """The passphrase for ``what``: from the file in COREG_PASSPHRASE_FILE, from COREG_PASSPHRASE, or from the terminal.

    Raises
    ------
    UsageError
        none of the three has one, or the file is missing or cannot be read.
    Refused
        the file is readable by other users.
    """
    if named := os.environ.get(FILE_VARIABLE):
        return _of_file(Path(named))
    if said := os.environ.get(VARIABLE):
        return said.encode()
    if sys.stdin is not None and sys.stdin.isatty():
        return getpass.getpass(f"passphrase for {what}: ").encode()
    raise UsageError(f"{what} needs a passphrase, and none is given. {SOURCES}")


def ask_twice(what: str) -> bytes:
    """A new passphrase. A person types it twice.

    Raises
    ------
    UsageError
        too short, or typed differently; or as `ask`.
    """
    first = ask(f"{what} (new)")
    typed = not (os.environ.get(FILE_VARIABLE) or os.environ.get(VARIABLE))
    if typed and ask(f"{what} (again)") != first:
        raise UsageError("the two passphrases differ; nothing was changed.")
    if len(first) < LEAST:
        raise UsageError(f"a passphrase for keys has at least {LEAST} characters; nothing was changed.")
    return first


def _of_file(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        is_open = mode_beyond(path, 0o770)
    except OSError as error:
        raise UsageError(
            f"{path}, which {FILE_VARIABLE} names, cannot be read ({error.strerror}): correct the variable, or the file."
        ) from None
    if is_open:
        raise Refused(f"{path} holds a passphrase and is open to every user of this machine: run `chmod 600 {path}`.")
    if not (passphrase := data.rstrip(b"\r\n")):
        raise UsageError(f"{path}, which {FILE_VARIABLE} names, is empty.")
    return passphrase


def is_encrypted(pem: bytes) -> bool:
    """Whether a key in PEM is encrypted."""
    return _ENCRYPTED in pem


def load_key(pem: bytes, path: Path, passphrase: Passphrase = ask) -> tuple[ec.EllipticCurvePrivateKey, bytes | None]:
    """The key in a file's text, and its passphrase; None for an unencrypted key.

    Raises
    ------
    Refused
        the passphrase is wrong.
    BadData
        it is not a private key in PEM, or not an elliptic-curve key.
    UsageError
        see `ask`.
    """
    secret = passphrase(str(path)) if is_encrypted(pem) else None
    try:
        key = keys.load_pem_private_key(pem, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if secret is not None and b"-----END" in pem:
            raise Refused(f"{path} does not open with this passphrase. {SOURCES}") from None
        raise BadData(f"{path} is not a private key in PEM ({error}).") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadData(f"{path} is not an elliptic-curve key.")
    return key, secret


def key_pem(key: ec.EllipticCurvePrivateKey, secret: bytes | None = None) -> bytes:
    """The key in PEM (PKCS#8), encrypted if there is a passphrase."""
    how = keys.NoEncryption() if secret is None else keys.BestAvailableEncryption(secret)
    return key.private_bytes(keys.Encoding.PEM, keys.PrivateFormat.PKCS8, how)


def mode_beyond(path: Path, allowed: int) -> int:
    """The permission bits of a file beyond ``allowed``. 0 on Windows, where the folder's access list protects files."""
    return path.stat().st_mode & 0o777 & ~allowed if hasattr(os, "geteuid") else 0
