r"""X25519 keys, fresh in every run and process, signed by the certificate's key; peers held to their pinned fingerprints.

    secret_uv = X25519(k_u, K_v)        stream = AES-256-CTR under HKDF-SHA256(secret_uv; salt: the plan; info: the context)

The coordinator relays keys and is the certificate authority: it could sign a certificate for anybody. So a signature is
believed only of a key whose fingerprint the site's own policy has, from its peer's operator. Secrets stay in memory, and end
with the process.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives import hashes, hmac, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from coreg_core.errors import Refused
from coreg_core.masking.sums import Fill, Layout, Words, add_mask
from coreg_core.protocol.messages import Participant, Roster
from coreg_core.protocol.plan import Plan
from coreg_wire.identity.names import key_fingerprint
from coreg_wire.identity.signatures import is_signed, sign, statement
from site_agent.machine.masks import Offer

_ZEROS = memoryview(bytes(1 << 20))


def _statement(plan: Plan, site: str, key: str) -> bytes:
    """What a signature is on: a key, of that site, for that run of that plan, and nothing else."""
    return statement("coreg masks 1", plan.run, plan.digest, site, key)


class RunKeys:
    """See the module's docstring; `site_agent.machine.masks.Keys`.

    Parameters
    ----------
    name
        of this site.
    private
        its certificate's key.
    pinned
        the fingerprint that its policy has of a peer, or None.
    """

    def __init__(self, name: str, private: ec.EllipticCurvePrivateKey, pinned: Callable[[str], str | None]):
        self._name, self._private, self._pinned = name, private, pinned
        self._keys: dict[str, X25519PrivateKey] = {}
        self._offers: dict[str, Offer] = {}

    def __repr__(self) -> str:
        return f"RunKeys({self._name!r})"

    def offer(self, plan: Plan) -> Offer:
        """This site's key for a run; another run has another."""
        if plan.run not in self._offers:
            private = self._keys[plan.run] = X25519PrivateKey.generate()
            key = private.public_key().public_bytes_raw().hex()
            signature = sign(self._private, _statement(plan, self._name, key))
            identity = self._private.public_key().public_bytes(
                serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            self._offers[plan.run] = Offer(key, signature, identity.hex())
        return self._offers[plan.run]

    def forget(self, run: str) -> None:
        """The next offer for that run has another key: a job that begins anew may have other data under the same questions."""
        self._keys.pop(run, None)
        self._offers.pop(run, None)

    def agree(self, plan: Plan, roster: Roster) -> "PairwiseMasks":
        """The masks with everybody else on the roster.

        Raises
        ------
        Refused
            see `site_agent.machine.masks.Keys`.
        """
        own = self._keys.get(plan.run)
        if own is None:
            raise Refused(f"run {plan.run}: this site has no key for its masks; it did not accept the plan.")
        seen = {key_fingerprint(self._private.public_key()): self._name}
        secrets: dict[str, bytes] = {}
        for peer in roster.participants:
            if peer.site == self._name:
                continue
            fingerprint, public = self._checked(plan, peer)
            if fingerprint in seen:
                raise Refused(
                    f"{peer.site} has the very key of {seen[fingerprint]}: one site under two names is not summed."
                )
            seen[fingerprint] = peer.site
            extract = hmac.HMAC(plan.digest.encode(), hashes.SHA256())  # HKDF's first half (RFC 5869, 2.2)
            extract.update(own.exchange(public))
            secrets[peer.site] = extract.finalize()
        return PairwiseMasks(roster, self._name, secrets)

    def _checked(self, plan: Plan, peer: Participant) -> tuple[str, X25519PublicKey]:
        pinned = self._pinned(peer.site)
        if pinned is None:
            raise Refused(
                f"{peer.site} is not among the [peers] of this site's policy, so nobody has said that it is another "
                f"organisation and "
                f"not the coordinator. Ask its operator for what `coreg-agent peers` prints there, and pin it."
            )
        try:
            identity = serialization.load_der_public_key(bytes.fromhex(peer.identity))
            public = X25519PublicKey.from_public_bytes(bytes.fromhex(peer.key))
        except ValueError:
            raise Refused(f"the roster has no key of {peer.site} that can be read.") from None
        fingerprint = key_fingerprint(identity) if isinstance(identity, ec.EllipticCurvePublicKey) else ""
        if fingerprint != pinned or not isinstance(identity, ec.EllipticCurvePublicKey):
            raise Refused(
                f"the roster's key of {peer.site} is not the one that this site's policy pins ({pinned[:16]}…, not "
                f"{fingerprint[:16]}…). "
                f"If {peer.site} has a new key, its operator can say so by telephone (`coreg-agent peers`); otherwise the "
                f"coordinator, "
                "or whoever holds its authority, puts itself in that site's place."
            )
        if not is_signed(identity, peer.signature, _statement(plan, peer.site, peer.key)):
            raise Refused(f"the key of {peer.site} for this run is not signed by that site: nothing is masked with it.")
        return fingerprint, public


@dataclass(frozen=True)
class PairwiseMasks:
    """One secret a peer; `site_agent.machine.masks.Masks`."""

    roster: Roster
    name: str
    secrets: dict[str, bytes] = field(repr=False)

    def add(self, layout: Layout, words: Words, context: bytes) -> None:
        """Of each pair the first in site order adds the stream, and the second takes it away."""
        for peer, secret in self.secrets.items():
            key = HKDFExpand(hashes.SHA256(), 48, context).derive(secret)
            add_mask(layout, words, _stream(key), negative=self.name > peer)


def _stream(key: bytes) -> Fill:
    """The keystream's next words, written where they are wanted."""
    encryptor = Cipher(algorithms.AES256(key[:32]), modes.CTR(key[32:])).encryptor()

    def fill(into: Words) -> None:
        encryptor.update_into(_ZEROS[: into.nbytes], into.view(np.uint8).data)

    return fill
