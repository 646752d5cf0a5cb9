"""The site's secret for its data digest, and for names in its ledger."""

import secrets
from pathlib import Path

from coreg_core.errors import StorageError
from coreg_wire.files.disk import make_private_folder, write_whole


def site_salt(path: Path, ledger: Path) -> bytes:
    """Read the secret, which is created once (mode 0600) and never sent."""
    try:
        if path.exists():
            return path.read_bytes()
        if ledger.exists() and ledger.stat().st_size:
            raise StorageError(
                f"{path} is missing, and {ledger} has answers whose instances are named under it."
                " Restore both from the same backup (docs/how-to/operate-a-site.md)."
            )
        make_private_folder(path.parent)
        salt = secrets.token_bytes(32)
        write_whole(path, salt, mode=0o600)  # synced before the ledger's first line, which needs it
    except OSError as error:
        raise StorageError(f"{path}: cannot be used ({error.strerror}).") from None
    return salt
