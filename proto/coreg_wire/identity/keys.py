"""Private keys in files: PEM (PKCS#8), with mode 0600."""

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as keys
from cryptography.hazmat.primitives.asymmetric import ec

from coreg_core.errors import BadData


def load_key(pem: bytes, path: Path) -> ec.EllipticCurvePrivateKey:
    """The key in a file's text."""
    try:
        key = keys.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadData(f"{path} is not a private key in PEM ({error}).") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadData(f"{path} is not an elliptic-curve key.")
    return key


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key in PEM (PKCS#8)."""
    return key.private_bytes(keys.Encoding.PEM, keys.PrivateFormat.PKCS8, keys.NoEncryption())


def mode_beyond(path: Path, allowed: int) -> int:
    """The permission bits of a file beyond ``allowed``. 0 on Windows, where the folder's access list protects files."""
    return path.stat().st_mode & 0o777 & ~allowed if hasattr(os, "geteuid") else 0
