"""Keys for simulated sites, derived from their names, so that every process knows all peers.

These keys protect nothing: one owner runs all sites. They only reproduce the work and the bits of masking.
"""

import hashlib
from functools import cache

from cryptography.hazmat.primitives.asymmetric import ec

from coreg_wire.identity.names import key_fingerprint
from site_agent.identity.run_keys import RunKeys

_ORDER_BELOW = 1 << 255  # every number from 1 to this is a private key of P-256


@cache
def identity_of(name: str) -> ec.EllipticCurvePrivateKey:
    """The certificate's key of a site of this name."""
    number = int.from_bytes(hashlib.sha256(b"coreg simulated site " + name.encode()).digest(), "big") % _ORDER_BELOW
    return ec.derive_private_key(number + 1, ec.SECP256R1())


@cache
def fingerprint_of(name: str) -> str:
    return key_fingerprint(identity_of(name).public_key())


def simulated_keys(name: str) -> RunKeys:
    """The run keys of one site."""
    return RunKeys(identity_of(name), fingerprint_of)
