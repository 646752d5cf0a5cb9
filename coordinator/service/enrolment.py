"""The listener for invitations: sites without a certificate ask here, over TLS without a client
certificate.

A connection has one JSON line each way: `{"ask": "authority"}` → `{"authority": PEM}`, or `{"ask":
"certificate", "site", "request", "proof"}` → `{"certificate", "authority"}` or `{"refused"}`.
"""

import asyncio
import ipaddress
import json
import re
import ssl
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path

from coordinator.authority.invitations import UNABLE, Denied, Issued, redeem
from coordinator.machine.notices import NoticeName, notice
from coreg_core.errors import CoregError, Refused, UsageError
from coreg_core.names import check_site_name
from coreg_core.outcomes import Notice

MOST_BYTES = 16 << 10
MOST_CONNECTIONS = 256
MOST_OF_ONE_ADDRESS = 4
SECONDS = 20.0  # of a connection
TRIED_AGAIN = 10.0  # seconds until a port that was taken
SECONDS_TO_ASK = 5.0  # until its request is there
# After so many refusals within the window, each further one is delayed.
REFUSALS = 10
WINDOW_SECONDS = 60.0
DELAY_SECONDS = 5.0
_PROOF = re.compile(r"[0-9a-f]{64}")
_END = b"-----END CERTIFICATE-----\n"


class Enrolment:
    """Answers invitations in an authority's folder, of the sites that are listed now."""

    def __init__(
        self,
        folder: Path,
        notice: Callable[[Notice], None],
        listed: Callable[[], Sequence[str]],
    ):
        self._folder = folder
        self._notice = notice
        self._listed = listed
        self._open = Counter[str]()  # connections by the peer's address
        self._refusals = deque[float](maxlen=REFUSALS)

    async def serve(self, host: str, port: int) -> None:
        """Listen until cancelled.

        If another program has the port, sites with a certificate are not affected. The port is
        tried again.
        """
        refusal = ""
        server = None
        while server is None:
            try:
                server = await asyncio.start_server(
                    self._connected, host.strip("[]"), port, limit=MOST_BYTES
                )
            except (OSError, OverflowError) as error:
                if str(error) != refusal:  # told once
                    refusal = str(error)
                    where = f"{host}:{port}"
                    self._notice(notice(NoticeName.ENROLMENT_CLOSED, address=where, reason=refusal))
                await asyncio.sleep(TRIED_AGAIN)
        try:
            await asyncio.Event().wait()
        finally:
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """TLS begins here, and not in `start_server`, so that unfinished handshakes count as open
        connections.
        """
        peer = network_of(str((writer.get_extra_info("peername") or ("",))[0]))
        self._open[peer] += 1
        try:
            if self._open[peer] > MOST_OF_ONE_ADDRESS or self._open.total() > MOST_CONNECTIONS:
                self._notice(
                    notice(
                        NoticeName.ENROLMENT_BUSY,
                        address=peer,
                        of_it=self._open[peer],
                        of_all=self._open.total(),
                    )
                )
                return
            async with asyncio.timeout(SECONDS):
                await self._answer(reader, writer)
        except (OSError, ValueError, RecursionError):
            pass  # of time, of TLS, or a line that is too long or not JSON
        finally:
            self._open -= Counter([peer])  # without addresses that have none left
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A new one, since the certificate is renewed.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._folder / "coordinator.pem", self._folder / "coordinator.key")
        async with asyncio.timeout(SECONDS_TO_ASK):
            await writer.start_tls(context)
            line = await reader.readline()
        answer = await self._answered(line)
        if "refused" in answer:
            slowed = self._too_many()
            self._refusals.append(asyncio.get_running_loop().time())
            await asyncio.sleep(DELAY_SECONDS if slowed else 0.0)
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def _answered(self, line: bytes) -> dict[str, str]:
        try:
            match json.loads(line):
                case {"ask": "authority"}:
                    return {"authority": (self._folder / "ca.pem").read_text(encoding="ascii")}
                case {
                    "ask": "certificate",
                    "site": str(site),
                    "request": str(request),
                    "proof": str(given),
                } if request.isascii() and _PROOF.fullmatch(given):
                    return await self._certificate(check_site_name(site), request.encode(), given)
                case _:
                    raise UsageError(
                        "The coordinator does not understand this request. Install the release that"
                        " it has."
                    )
        except UsageError as error:
            return {"refused": str(error)}

    async def _certificate(self, site: str, request: bytes, given: str) -> dict[str, str]:
        try:
            listed = site in self._listed()
            redeemed = await asyncio.to_thread(
                redeem, self._folder, site, request, given, listed=listed
            )
        except CoregError as error:
            if not self._too_many():  # a stranger must not fill the log and the store
                self._notice(notice(NoticeName.ENROLMENT_REFUSED, name=site, reason=str(error)))
            return {"refused": str(error) if isinstance(error, Refused) else UNABLE}
        match redeemed:
            case Issued(answer, first):
                if first:
                    self._notice(notice(NoticeName.ENROLLED, site=site))
                certificate, _, authority = answer.partition(_END)
                return {
                    "certificate": (certificate + _END).decode(),
                    "authority": authority.decode(),
                }
            case Denied(reason, log):
                # Always: it can be a theft, and a flood of others must not hide it.
                self._notice(notice(NoticeName.ENROLMENT_REFUSED, name=site, reason=log))
                return {"refused": reason}

    def _too_many(self) -> bool:
        """Whether the window is full of refusals."""
        now = asyncio.get_running_loop().time()
        return len(self._refusals) == REFUSALS and now - self._refusals[0] < WINDOW_SECONDS


def network_of(address: str) -> str:
    """The address, or the /64 of an IPv6 one: that is what one machine can have all addresses
    of.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
