"""The allow-list: which sites may join, each with the one certificate that it may show.

The file `authorised-sites` stands beside the authority's: one `NAME FINGERPRINT` a line (SHA-256 of the certificate in
hexadecimal, with or without colons), `#` begins a comment. A certificate that was renewed stands behind the new one, and counts
until it runs out: a site goes on with it until it has installed the answer. The list is read at every question, so that adding or
revoking needs no restart, and rewritten whole, so that a reader never sees half of it. In doubt nobody joins.
"""

import re
from pathlib import Path

from coreg_core.errors import Refused, StorageError, UsageError
from coreg_wire.files import files
from coreg_wire.files.locks import exclusive
from coreg_wire.identity.names import certificate_name, check_site_name, fingerprint, load_certificates

ALLOW_LIST = "authorised-sites"
BUSY = "another command changes it. Try again."
HEADER = "# Sites that may join: NAME SHA-256-OF-CERTIFICATE. Delete a line to revoke.\n"
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class Authorised:
    """The sites that may join, by the list in `directory` as it is at the moment of asking."""

    def __init__(self, directory: Path | str) -> None:
        self._path = Path(directory) / ALLOW_LIST

    def sites(self) -> dict[str, str]:
        """Fingerprint of each listed site, by name, in the file's order; unreadable lines are left out."""
        return {entry[0]: entry[1][0] for line in _lines(self._path) if (entry := _parse(line)) is not None}

    def check(self, name: str, certificate_pem: bytes) -> None:
        """Return when the certificate is `name`'s and the one that is listed.

        Raises
        ------
        Refused
            It is another site's, or the name is not listed, listed twice, or listed with another certificate.
        StorageError
            The list cannot be read: nobody joins.
        """
        certificate = load_certificates(certificate_pem, f"The certificate of {name!r}")[0]
        owner = certificate_name(certificate, "The peer's certificate")
        if owner != name:
            raise Refused(
                f"A peer that calls itself {name!r} holds the certificate of {owner!r}; a name speaks only with its "
                "own. Correct the agent's --name, or its identity directory."
            )
        lines = _lines(self._path)
        listed = [entry[1] for line in lines if (entry := _parse(line)) is not None and entry[0] == name]
        if not listed:
            bad = [str(i) for i, line in enumerate(lines, 1) if _text(line) and _parse(line) is None]
            hint = f" (Lines that could not be read: {', '.join(bad)}.)" if bad else ""
            raise Refused(
                f"{name} is not in {self._path}: it was never signed here, or was revoked.{hint} To let it in, sign "
                "its request with `coreg-coordinator sign`."
            )
        if len(listed) > 1:
            raise Refused(f"{name} stands {len(listed)} times in {self._path}: the operator must leave one line.")
        mark = fingerprint(certificate)
        if mark not in listed[0]:
            raise Refused(
                f"{name} showed the certificate {mark[:16]}…, but {self._path} lists {listed[0][0][:16]}…: the one shown "
                "was revoked or replaced. Install the newest answer with `coreg-agent enroll --install`, "
                "or sign the site's request again."
            )


def authorise(directory: Path | str, name: str, mark: str, *, beside: str | None = None) -> bool:
    """List `name` with the certificate of fingerprint `mark`, instead of any other but `beside`; True when there was another."""
    marks = mark if beside is None else f"{mark} {beside}"
    return _edit(Path(directory) / ALLOW_LIST, check_site_name(name), marks)


def revoke(directory: Path | str, name: str) -> bool:
    """Take a site off the list, at once and without a restart; False when it was not there.

    Raises
    ------
    UsageError
        there is no such list: nobody was ever signed there.
    """
    path = Path(directory) / ALLOW_LIST
    if not path.exists():
        raise UsageError(
            f"{path} does not exist: no site is listed there. Name the folder that `coreg-coordinator init` made with --identity."
        )
    return _edit(path, check_site_name(name), None)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a public file (mode 0644) at one instant: a reader, or a machine that stops, sees the old or the new."""
    files.write_whole(path.resolve(), data, mode=0o644)  # a link stays a link


def _edit(path: Path, name: str, marks: str | None) -> bool:
    """Give `name` the fingerprint, or no line at all; every other line, comments among them, stays as it was."""
    with exclusive(path, BUSY, 10.0):
        lines = _lines(path) if path.exists() else HEADER.splitlines()
        mine = [i for i, line in enumerate(lines) if _text(line).split()[:1] == [name]]
        kept = [line for i, line in enumerate(lines) if i not in mine]
        if marks is not None:
            kept.insert(mine[0] if mine else len(kept), f"{name} {marks}")
        if kept != lines:
            write_whole(path, "".join(f"{line}\n" for line in kept).encode())
        return bool(mine)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise StorageError(f"{path} does not exist, so nobody may join: `coreg-coordinator sign` makes it.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} cannot be read ({error}), so nobody may join: check its owner and mode.") from error


def _text(line: str) -> str:
    return line.partition("#")[0].strip()


def _parse(line: str) -> tuple[str, tuple[str, ...]] | None:
    """A name and its fingerprints; None for a comment, an empty line, and a line that is neither."""
    name, *words = _text(line).split() or [""]
    marks = tuple(word.replace(":", "").lower() for word in words)
    return (name, marks) if 1 <= len(marks) <= 2 and all(map(_FINGERPRINT.fullmatch, marks)) else None
