"""The server's certificate while a federation stands: read again on request without ending a session, and warned of
once a day.
"""

import time
from pathlib import Path

from coordinator.authority.authorised import Authorised
from coordinator.authority.notary import Notary
from coordinator.authority.pki import expiry_warnings, load_server
from coordinator.machine.records import HeadSigned
from coordinator.service.access import Door
from coreg_core.errors import CoregError
from coreg_core.protocol.messages import Fetched
from coreg_wire.identity.credentials import RenewableServer
from coreg_wire.terminal.logs import Log

DAY = 86_400.0


class Certificates:
    """See the module's docstring; ``warnings`` are those of the last look, for `coreg-coordinator status`.

    Raises
    ------
    CoregError
        what the server needs is missing or wrong; see `load_server`.
    """

    def __init__(self, identity: Path, log: Log):
        self._identity, self._log = identity, log
        files = load_server(identity)
        self._secret = files.secret
        self._server = RenewableServer(files.key_pem, files.certificate_pem, files.ca_pem)
        self._notary = Notary(files)
        self._looked = -DAY
        self.warnings: list[str] = []

    @property
    def door(self) -> Door:
        """Who is let in, and what heads are countersigned with: by what the files said last."""
        return Door(self._server.credentials, Authorised(self._identity).check, self._attest)

    def _attest(self, site: str, certificate_pem: bytes, fetched: Fetched) -> HeadSigned:
        return self._notary.attest(site, certificate_pem, fetched)

    def reload(self) -> None:
        """From the next connection on what the files say now.

        Raises
        ------
        CoregError
            they are not right; everything stays as it was.
        """
        files = load_server(self._identity, passphrase=lambda _what: self._secret or b"")
        self._server.renew(files.key_pem, files.certificate_pem, files.ca_pem)
        self._notary = Notary(files)
        self._looked = -DAY

    def look(self) -> None:
        """Once a day: what runs out within a month, in the log."""
        if time.monotonic() - self._looked < DAY:
            return
        self._looked = time.monotonic()
        try:
            self.warnings = expiry_warnings(self._identity)
        except CoregError as error:
            self.warnings = [str(error)]
        for warning in self.warnings:
            self._log.warning("certificate", text=warning)
