"""The authority's folder: the names of its files, and functions to read and create them."""

import os
import shlex
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization as keys
from cryptography.hazmat.primitives.asymmetric import ec

from coreg_core.errors import BadData, Refused, StorageError, UsageError
from coreg_wire.files.files import read as read_file
from coreg_wire.identity.keys import load_key, mode_beyond
from coreg_wire.identity.names import load_certificates

FILES = ("ca.key", "ca.pem", "coordinator.key", "coordinator.pem")


def load_private(path: Path) -> ec.EllipticCurvePrivateKey:
    """A key of the authority's folder."""
    data = read(path)
    if mode_beyond(path, 0o600):
        raise Refused(f"{path} is open to other users of this machine: run `chmod 600 {path}`.")
    try:
        return load_key(data, path)
    except BadData as error:
        renew = f", or delete it and run `coreg-coordinator init {path.parent} --renew-server`" * (
            path.name == "coordinator.key"
        )
        raise BadData(f"{error} `coreg-coordinator init` makes such keys: restore it from a backup{renew}.") from error


def load_certificate(path: Path) -> x509.Certificate:
    return load_certificates(read(path), str(path))[0]


def signed_by(path: Path, ca: x509.Certificate) -> bool:
    """Whether the authority signed the first certificate in a file."""
    try:
        load_certificate(path).verify_directly_issued_by(ca)
    except (UsageError, BadData, ValueError, TypeError, InvalidSignature):
        return False
    return True


def pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(keys.Encoding.PEM)


def read(path: Path, next_step: str = "") -> bytes:
    """A file's bytes; ``next_step`` is the advice if the file is missing. See `coreg_wire.files.files.read`."""
    return read_file(path, next_step or _advice(path))


def _advice(path: Path) -> str:
    """What to do if a file of an authority is missing."""
    folder = path.parent
    if path.name in ("coordinator.key", "coordinator.pem") and (folder / "ca.key").exists():
        names = "" if (folder / "coordinator.pem").exists() else " --host NAME"
        return f"Make it again: `coreg-coordinator init {shlex.quote(str(folder))} --renew-server{names}`."
    if any((folder / name).exists() for name in ("ca.key", "ca.pem", "coordinator.pem")):
        return "Restore it from your backup (docs/how-to/back-up-and-restore.md)."
    return "Name the authority's folder: --identity DIR. If there is none yet, make it: `coreg-coordinator init DIR`."


def create_all(*files: tuple[Path, bytes, int]) -> None:
    """Create all files with their modes; none may exist. If one fails, remove the others."""
    made: list[Path] = []
    try:
        for path, data, mode in files:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            made.append(path)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        raise StorageError(f"{error.filename or files[0][0].parent} cannot be created ({error.strerror}).") from error
