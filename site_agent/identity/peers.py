"""A site's peers: fingerprints of their keys, as words to read out over the telephone and as pins of policy.toml."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tomlkit
from cryptography.hazmat.primitives.asymmetric import ec
from tomlkit.exceptions import TOMLKitError

from coreg_core.errors import BadData, UsageError
from coreg_wire.files.disk import write_whole
from coreg_wire.identity.names import certificate_name, key_fingerprint, load_certificates
from coreg_wire.identity.signatures import private_key
from site_agent.identity.identity import Identity
from site_agent.identity.run_keys import RunKeys


@dataclass(frozen=True)
class Peer:
    """A site's name and its key's fingerprint, from its certificate; ``pinned``: the fingerprint in a policy, or None."""

    name: str
    fingerprint: str
    pinned: str | None = None

    @property
    def verdict(self) -> str:
        if self.pinned is None:
            return "not pinned"
        if self.pinned == self.fingerprint:
            return "pinned"
        return "ANOTHER KEY THAN THE ONE THAT IS PINNED"

    @property
    def another_key(self) -> bool:
        return self.pinned not in (None, self.fingerprint)


def peer_of(path: Path, pinned: Mapping[str, str]) -> Peer:
    """The peer of a certificate file (its first certificate).

    Raises
    ------
    UsageError, BadData
        no such file, or not a site's certificate.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}).") from None
    certificate = load_certificates(data, str(path))[0]
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise BadData(f"{path}: not an elliptic-curve key, so not a certificate that `coreg-coordinator sign` wrote.")
    name = certificate_name(certificate, str(path))
    return Peer(name, key_fingerprint(key), pinned.get(name))


def pins(peers: list[Peer]) -> str:
    """The section [peers] of policy.toml."""
    document = tomlkit.document()
    _pin(document, peers)
    return document.as_string().rstrip("\n")


def write_pins(path: Path, peers: list[Peer]) -> list[str]:
    """Add peers to the [peers] of a policy.toml, and keep the rest of it. Returns the new names.

    Raises
    ------
    UsageError
        the file cannot be used, or it pins another key of a site.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file. Correct the name, or run `coreg-agent init` first.")
    if strangers := [p.name for p in peers if p.another_key]:
        raise UsageError(
            f"{path}: another key is pinned for {', '.join(strangers)}; nothing was changed. Compare the words of `coreg-agent "
            "peers` by telephone. If the new key is right, delete the old line and run the command again."
        )
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8"))
        added = _pin(document, peers)
        if added:
            write_whole(path.resolve(), document.as_string().encode(), mode=0o600)
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}.") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from None
    return added


def _pin(document: tomlkit.TOMLDocument, peers: list[Peer]) -> list[str]:
    section = document.setdefault("peers", tomlkit.table())
    added = [p for p in sorted(peers, key=lambda p: p.name) if section.get(p.name) != p.fingerprint]
    for peer in added:
        section[peer.name] = peer.fingerprint
    return [peer.name for peer in added]


def own_fingerprint(identity: Identity) -> str:
    """Of the site's key."""
    return key_fingerprint(private_key(identity.key_pem).public_key())


def run_keys(identity: Identity, pinned: Mapping[str, str]) -> RunKeys:
    """The run keys of an enrolled site, which accept only the peers of its policy."""
    return RunKeys(private_key(identity.key_pem), pinned.get)
