"""The allow-list: the sites that may join, each with its key.

`authorised-sites` in the authority's folder has one `NAME FINGERPRINT` per line (SHA-256 of the
site's public key in hexadecimal, with or without colons); `#` begins a comment. It is read at every
join, and replaced atomically. If it cannot be read, no site can join.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from coreg_core.errors import Refused, StorageError, UsageError
from coreg_core.names import check_site_name
from coreg_wire.files.disk import exclusive, write_whole
from coreg_wire.identity.names import (
    certificate_name,
    key_fingerprint,
    load_certificates,
)

ALLOW_LIST = "authorised-sites"
HEADER = "# Sites that may join: NAME SHA-256-OF-PUBLIC-KEY. Delete a line to revoke.\n"
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class Authorised:
    """The sites that may join. Every call reads the list in `directory` again."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / ALLOW_LIST

    def sites(self) -> dict[str, str]:
        """Fingerprint of each listed site, by name, in the file's order; unreadable lines are left
        out.
        """
        return {
            entry[0]: entry[1] for line in _lines(self._path) if (entry := _parse(line)) is not None
        }

    def damage(self) -> str:
        """A sentence about lines that cannot be read; "" if there are none.

        StorageError as `check`.
        """
        bad = [
            str(i)
            for i, line in enumerate(_lines(self._path), 1)
            if _text(line) and _parse(line) is None
        ]
        if not bad:
            return ""
        what = "line" if len(bad) == 1 else "lines"
        return (
            f"{self._path}, {what} {', '.join(bad)}: not NAME FINGERPRINT. The coordinator's"
            " operator has to restore the file from a backup."
        )

    def check(self, name: str, certificate_pem: bytes) -> None:
        """Return if the certificate belongs to `name` and its key is listed."""
        certificate = load_certificates(certificate_pem, f"The certificate of {name!r}")[0]
        owner = certificate_name(certificate, "The peer's certificate")
        if owner != name:
            raise Refused(
                f"A peer with the name {name!r} has the certificate of {owner!r}. Correct its"
                " identity directory."
            )
        lines = _lines(self._path)
        listed = [
            entry[1] for line in lines if (entry := _parse(line)) is not None and entry[0] == name
        ]
        if not listed and (damage := self.damage()):
            raise Refused(f"{name} is not admitted: {damage}")
        if not listed:
            raise Refused(
                f"{name} is not admitted: its certificate was never signed here, or was revoked."
                " The coordinator's operator can invite it again (`coreg-coordinator invite FOLDER"
                f" {name}`)."
            )
        if len(listed) > 1:
            raise Refused(
                f"{name} is listed {len(listed)} times in {self._path}. The operator must keep one"
                " line."
            )
        mark = key_fingerprint(certificate.public_key())
        if mark != listed[0]:
            raise Refused(
                f"{name} has the key {mark[:16]}…, but {self._path} lists {listed[0][:16]}…: the"
                " key was replaced. Use the folder with the newest key, or ask for a new"
                " invitation."
            )


def authorise(
    directory: Path, name: str, mark: str, first: Callable[[], None] = lambda: None
) -> None:
    """List `name` with the key of fingerprint `mark`.

    ``first`` is called while the list is locked, before it changes.
    """
    _edit(directory / ALLOW_LIST, check_site_name(name), mark, first)


def unsigned(directory: Path, sites: Sequence[str]) -> str:
    """A sentence on sites without a certificate in the list, which therefore cannot connect; ""
    without one.
    """
    path = directory / ALLOW_LIST
    listed, damage = (
        (Authorised(directory).sites(), Authorised(directory).damage())
        if path.exists()
        else ({}, "")
    )
    if not (missing := [site for site in sites if site not in listed]):
        return ""
    if damage:
        return f"{', '.join(missing)} cannot connect: {damage} Runs wait for [timeouts] join."
    return (
        f"waiting for `coreg-agent join` of {', '.join(missing)}, not enrolled in {path}. Each"
        f" needs its invitation (`coreg-coordinator invite {directory} SITE` makes one); or remove"
        " it from [federation] sites. Runs wait for it."
    )


def revoke(directory: Path, name: str) -> bool:
    """Remove a site from the list, effective without a restart; False if it was not listed."""
    path = directory / ALLOW_LIST
    if not path.exists():
        raise UsageError(
            f"{path} does not exist: no site is listed there. Name the folder that"
            " `coreg-coordinator init` made."
        )
    return _edit(path, check_site_name(name), None)


def _edit(
    path: Path, name: str, mark: str | None, first: Callable[[], None] = lambda: None
) -> bool:
    """Replace or remove the line of `name`; True if that changed one.

    All other lines, including comments, stay.
    """
    with exclusive(path, "another command changes it. Try again.", 10.0):
        lines = _lines(path) if path.exists() else HEADER.splitlines()
        first()
        mine = [i for i, line in enumerate(lines) if _text(line).split()[:1] == [name]]
        if [_parse(lines[i]) for i in mine] == [(name, mark)]:
            return False  # it has this key already
        kept = [line for i, line in enumerate(lines) if i not in mine]
        if mark is not None:
            kept.insert(mine[0] if mine else len(kept), f"{name} {mark}")
        if kept != lines:
            # A link stays a link.
            write_whole(path.resolve(), "".join(f"{line}\n" for line in kept).encode(), mode=0o644)
        return bool(mine)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise StorageError(
            f"{path} does not exist, so no site can join. Restore it from your backup, or invite"
            " each site again."
        ) from error
    except UnicodeDecodeError as error:
        raise StorageError(
            f"{path} is no text, so no site can join. Restore it from your backup."
        ) from error
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read ({error}), so no site can join: check its permissions."
        ) from error


def _text(line: str) -> str:
    return line.partition("#")[0].strip()


def _parse(line: str) -> tuple[str, str] | None:
    """A name and its fingerprint; None for a comment, an empty line, and a line that is neither."""
    name, _, written = _text(line).partition(" ")
    mark = written.strip().replace(":", "").lower()
    if _FINGERPRINT.fullmatch(mark):
        return (name, mark)
    return None
