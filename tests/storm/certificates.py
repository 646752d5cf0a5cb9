"""The certificates of a storm: a real authority and real identities, renewed and revoked with the product's own functions."""

import contextlib
from pathlib import Path

from cryptography import x509

from coordinator.authority.authorised import revoke
from coordinator.authority.pki import create_authority, renewed_site, sign_request
from coordinator.service.access import AccessControl
from coreg_core.errors import Refused
from coreg_wire.identity.names import key_fingerprint, load_certificates
from coreg_wire.identity.signatures import private_key
from site_agent.identity.identity import check_identity, enrol, install, install_renewed
from tests.storm.loop import Process
from tests.storm.network import Network, Server


class Certificates:
    """An authority in ``folder/authority``, and each site's identity in a folder of its name."""

    def __init__(self, folder: Path, sites: tuple[str, ...]):
        self._folder, self.authority = folder, folder / "authority"
        create_authority(self.authority, [])
        self.keys = dict[str, str]()  # the fingerprint of each site's key, which every renewal keeps
        for site in sites:
            self.sign(site)
            self.keys[site] = key_fingerprint(private_key(check_identity(folder / site).key_pem).public_key())

    def sign(self, site: str) -> None:
        """Sign a request of the site, as at its enrolment; this admits a revoked site."""
        request = enrol(self._folder / site, site).request_path
        install(self._folder / site, sign_request(self.authority, request).certificate_path)

    def renew(self, site: str) -> None:
        """Renew the certificate, as the coordinator does before its end."""
        renewed = renewed_site(self.authority, check_identity(self._folder / site).certificate_pem, within_days=1e6)
        assert renewed is not None
        with contextlib.suppress(Refused):  # the clock went back: it is no later one
            install_renewed(self._folder / site, renewed)

    def revoke(self, site: str) -> None:
        revoke(self.authority, site)

    def trusted(self) -> list[x509.Certificate]:
        return load_certificates((self.authority / "ca.pem").read_bytes(), "ca.pem")


class Access(AccessControl):
    """The coordinator's access control, with a listener of the simulated network."""

    def __init__(self, authority: Path, network: Network, host: Process):
        super().__init__(authority, insecure=False)
        self._network, self._host, self._authority = network, host, authority

    def transport(self, _listen: str, _timeouts: object) -> Server:  # type: ignore[override]
        return Server(self._network, self._host, self._authority)
