"""Private keys in files: PEM (PKCS#8), with mode 0600 or, for the own group, 0640."""

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as keys
from cryptography.hazmat.primitives.asymmetric import ec

from coreg_core.errors import BadData, Refused


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


def check_private(path: Path, if_read: str = "") -> None:
    """Refuse a key that other users can read; ``if_read``: what to do if one has. The file's own group can read it (0640).

    Windows is left out: there the folder's access list protects files.
    """
    if not hasattr(os, "geteuid"):
        return
    found = path.stat()
    beyond = found.st_mode & 0o777 & ~0o600
    if not beyond or (beyond == 0o040 and found.st_gid in (os.getegid(), *os.getgroups())):
        return
    why, todo = (
        f"{path} has mode {found.st_mode & 0o777:04o}, so other users of this machine can",
        f"Run `chmod 600 {path}`.",
    )
    if beyond & 0o020:
        kubernetes = (
            "If Kubernetes set it (fsGroup), set fsGroupChangePolicy: OnRootMismatch in the securityContext too."
        )
        raise Refused(f"{why} change the key. {todo} {kubernetes}{if_read}")
    if not found.st_mode & 0o222:  # a secret of Docker
        docker = "A secret of Docker has this mode: mount the folder of the key instead, or give the secret mode 0400."
        raise Refused(f"{why} read the key. {docker}{if_read}")
    raise Refused(f"{why} read the key. {todo}{if_read}")
