"""Keys for simulated sites: each has a certificate's key that follows from its name, so that every process knows its peers.

They hide nothing, and have nothing to hide from: one owner runs them all. What is simulated is the work and the bits.
"""

import hashlib
from functools import cache

from cryptography.hazmat.primitives.asymmetric import ec

from coreg_wire.identity.names import key_fingerprint
from site_agent.identity.run_keys import RunKeys

_ORDER_BELOW = 1 << 255  # every number from 1 to this is a private key of P-256


@cache
def identity_of(name: str) -> ec.EllipticCurvePrivateKey:
    """The key in the certificate that a site of this name would have."""
    number = int.from_bytes(hashlib.sha256(b"coreg simulated site " + name.encode()).digest(), "big") % _ORDER_BELOW
    return ec.derive_private_key(number + 1, ec.SECP256R1())


@cache
def fingerprint_of(name: str) -> str:
    return key_fingerprint(identity_of(name).public_key())


def simulated_keys(name: str) -> RunKeys:
    """For one site in one process."""
    return RunKeys(identity_of(name), fingerprint_of)
