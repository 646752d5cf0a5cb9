r"""The keys of one attempt of a run: ephemeral, made from a contribution of every member, and
unknown to the coordinator.

    secret_uv = X25519(e_u, E_v)                c_u → v:  AES-256-GCM under HKDF(secret_uv; T, "u →
    v")
    K = HKDF(c_1, …, c_M; T)                    words_v = n_v + Σ_u ± mask_uv + [v is the first]
    keystream_K  (mod 2⁶⁴)

T is the digest of the plan and of all offers. Masks and keystream are AES-256-CTR, each under a key
that HKDF derives for one step's context. An additive tag accompanies the words
(`coreg_core.secure.sums`): it shows a changed sum, and a site with another K. The coordinator is
the certificate authority, so a signature counts only if this site's own operator has confirmed its
key, by the eight words. These secrets are never written to a disk.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from cryptography.hazmat.primitives.poly1305 import Poly1305

from coreg_core.errors import BadData, Refused
from coreg_core.messages import Offer
from coreg_core.secure.sums import WORD, Row, is_sum, message, tag_words
from coreg_core.shapes import KEY_SIZE, TAG_WORDS
from coreg_wire.identity.names import key_fingerprint
from coreg_wire.identity.signatures import is_signed, offer_statement, sign

_PIECE = 1 << 14  # words of a keystream at a time: they stay in the cache
_ZEROS = memoryview(bytes(8 * _PIECE))
_NONCE = bytes(12)  # every key encrypts one text only


def _expanded(secret: bytes, purpose: str, context: bytes = b"", length: int = 32) -> bytes:
    return HKDFExpand(hashes.SHA256(), length, purpose.encode() + b"\0" + context).derive(secret)


def _bytes(text: str) -> bytes:
    """The bytes of hexadecimal digits, and others for what is no such text."""
    try:
        return bytes.fromhex(text)
    except ValueError:  # a later check refuses it
        return text.encode()


@dataclass(frozen=True)
class RunKeys:
    """`site_agent.machine.seal.Keys`. ``confirmed``: the fingerprint of a site's confirmed key."""

    private: ec.EllipticCurvePrivateKey = field(repr=False)
    confirmed: Callable[[str], str | None]

    def draw(self, offer: Offer) -> "AttemptSecrets":
        identity = self.private.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        key = X25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw()
        shown = replace(offer, key=public.hex(), identity=identity.hex())
        signed = replace(shown, signature=sign(self.private, offer_statement(shown)))
        return AttemptSecrets(signed, self.confirmed, key, os.urandom(KEY_SIZE))


@dataclass(eq=False, repr=False)
class AttemptSecrets:
    """`site_agent.machine.seal.Secrets`."""

    offer: Offer
    confirmed: Callable[[str], str | None]
    key: X25519PrivateKey
    contribution: bytes
    _roster: tuple[Offer, ...] = ()
    _transcript: bytes = b""
    _secrets: dict[str, bytes] = field(default_factory=dict)

    def wrap(self, roster: tuple[Offer, ...], transcript: bytes) -> dict[str, bytes]:
        self._roster = roster
        self._transcript = transcript
        self._check_distinct(roster)
        own = self.offer.site
        wrapped = dict[str, bytes]()
        for peer in roster:
            if peer.site == own:
                continue
            self._secrets[peer.site] = self._exchanged(self._checked(peer))
            cipher = self._cipher(peer.site, own, peer.site)
            wrapped[peer.site] = cipher.encrypt(_NONCE, self.contribution, self._transcript)
        return wrapped

    @staticmethod
    def _check_distinct(roster: tuple[Offer, ...]) -> None:
        # Hexadecimal digits can be in upper case: the bytes are the key.
        for one, other in combinations(roster, 2):
            same_key = _bytes(one.key) == _bytes(other.key)
            if same_key or _bytes(one.identity) == _bytes(other.identity):
                raise Refused(
                    f"{other.site} has the same key as {one.site}: one site cannot take part under"
                    " two names."
                )

    def _checked(self, peer: Offer) -> Offer:
        confirmed = self.confirmed(peer.site)
        if confirmed is None:
            raise Refused(
                f"the key of {peer.site} is not confirmed here, so it could be the coordinator"
                " under another name. Compare the eight words with the other operators."
            )
        try:
            identity = serialization.load_der_public_key(bytes.fromhex(peer.identity))
        except (ValueError, UnsupportedAlgorithm):  # no key, or one of a curve that does not exist
            raise Refused(
                f"the key that the coordinator sent for {peer.site} cannot be read."
            ) from None
        curve = identity if isinstance(identity, ec.EllipticCurvePublicKey) else None
        fingerprint = "" if curve is None else key_fingerprint(curve)
        if curve is None or fingerprint != confirmed:
            raise Refused(
                f"the key that the coordinator sent for {peer.site} is not the one that is"
                f" confirmed here (sent {fingerprint[:16]}…, confirmed {confirmed[:16]}…). Call the"
                f" operator of {peer.site}. Without a new key there, another party poses as that"
                " site: do not take part."
            )
        if not is_signed(curve, peer.signature, offer_statement(peer)):
            raise Refused(f"the offer of {peer.site} for this run is not signed by that site.")
        return peer

    def _exchanged(self, peer: Offer) -> bytes:
        try:
            shared = self.key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(peer.key)))
        except ValueError:  # the 32 bytes are no point of the curve, or one of low order
            raise Refused(
                f"{peer.site} offered an invalid key. Report it to its operator."
            ) from None
        return HKDF(hashes.SHA256(), 32, self._transcript, b"coreg pair").derive(shared)

    def _cipher(self, peer: str, sender: str, receiver: str) -> AESGCM:
        return AESGCM(_expanded(self._secrets[peer], "wrap", f"{sender}\0{receiver}".encode()))

    def unwrap(self, wrapped: Mapping[str, bytes]) -> "AttemptSeal":
        own = self.offer.site
        contributions = list[bytes]()
        for peer in self._roster:
            mine = peer.site == own
            contributions.append(
                self.contribution if mine else self._opened(peer.site, wrapped.get(peer.site, b""))
            )
        key = HKDF(hashes.SHA256(), 32, self._transcript, b"coreg run key").derive(
            b"".join(contributions)
        )
        return AttemptSeal(own, self._secrets, key)

    def _opened(self, peer: str, text: bytes) -> bytes:
        try:
            return self._cipher(peer, peer, self.offer.site).decrypt(_NONCE, text, self._transcript)
        except (InvalidTag, ValueError):
            raise Refused(
                f"the contribution of {peer} to the key of this run cannot be opened."
            ) from None


@dataclass(frozen=True)
class AttemptSeal:
    """`site_agent.machine.seal.Seal`."""

    site: str
    secrets: dict[str, bytes] = field(repr=False)
    key: bytes = field(repr=False)
    used: set[bytes] = field(default_factory=set, repr=False)
    tag_words = TAG_WORDS

    def mask(self, context: bytes, words: Row, answering: tuple[str, ...]) -> Row:
        if context in self.used:
            raise AssertionError("a mask is used once: a repeated step gets the stored answer.")
        self.used.add(context)
        tag = Poly1305.generate_tag(self._tag_key(context), message(words).view(np.uint8).data)
        out = np.concatenate([words, tag_words(tag)])
        for peer in answering:
            if peer != self.site:
                stream = _expanded(self.secrets[peer], "mask", context, 48)
                _add_stream(out, stream, negative=self.site > peer)
        if self.site == answering[0]:
            _add_stream(out, self._stream(context), negative=False)
        return out

    def open(self, context: bytes, words: Row, n_words: int, answering: tuple[str, ...]) -> Row:
        plain = words.copy()
        key = self._tag_key(context)
        if len(plain) == n_words + TAG_WORDS:
            _add_stream(plain, self._stream(context), negative=True)
            total = plain[:n_words]
            tags = plain[n_words:]
            tag = Poly1305.generate_tag(key, message(total).view(np.uint8).data)
            if is_sum(tag, tags, key[:16], n_words, len(answering)):
                return total
        raise BadData(
            "the sum of this step does not match the sites' answers: a site answered another step,"
            " state or question, or the sum was changed in transit. It is not used."
        )

    def _tag_key(self, context: bytes) -> bytes:
        return _expanded(self.key, "tag", context, 16) + bytes(16)

    def _stream(self, context: bytes) -> bytes:
        """The key of the seal that the first site adds: only members can read the sum."""
        return _expanded(self.key, "seal", context, 48)

    def close(self, context: bytes, text: bytes, receiver: str = "") -> bytes:
        """See `Seal.close`: AES-256-GCM under a key for this context, sender and receiver."""
        return self._text_cipher(context, self.site, receiver).encrypt(_NONCE, text, context)

    def open_text(self, context: bytes, sealed: bytes, sender: str, *, to_all: bool) -> bytes:
        try:
            return self._text_cipher(context, sender, "" if to_all else self.site).decrypt(
                _NONCE, sealed, context
            )
        except InvalidTag:
            raise BadData(
                f"what {sender} sealed for this step cannot be opened: it was changed in transit,"
                " or the coordinator told the sites different things before. It is not used."
            ) from None

    def _text_cipher(self, context: bytes, sender: str, receiver: str) -> AESGCM:
        peer = receiver if sender == self.site else sender
        secret = self.secrets[peer] if receiver else self.key
        return AESGCM(_expanded(secret, "text", context + f"{sender}\0{receiver}".encode()))

    def blind(self, context: bytes, words: Row, senders: tuple[str, ...], receiver: str) -> Row:
        out = words.copy()
        for peer in senders:
            if peer != self.site:
                about = context + "\0".join((receiver, *senders)).encode()
                _add_stream(
                    out,
                    _expanded(self.secrets[peer], "blind", about, 48),
                    negative=self.site > peer,
                )
        return out

    @property
    def members_key(self) -> bytes:
        return _expanded(self.key, "members")


def _add_stream(words: Row, stream: bytes, *, negative: bool) -> None:
    """Add or subtract a keystream, in place and in pieces."""
    encryptor = Cipher(algorithms.AES256(stream[:32]), modes.CTR(stream[32:])).encryptor()
    buffer = np.empty(min(len(words), _PIECE), dtype=WORD)
    change = np.subtract if negative else np.add
    for start in range(0, len(words), _PIECE):
        into = words[start : start + _PIECE]
        mask = buffer[: len(into)]
        encryptor.update_into(_ZEROS[: mask.nbytes], mask.view(np.uint8).data)
        change(into, mask, out=into)
