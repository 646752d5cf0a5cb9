r"""Connect to the coordinator, and reconnect when the stream breaks, until a conversation is complete."""

import asyncio
import math
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from coreg_core.errors import Unreachable

# The first match counts. gRPC has one status, UNAVAILABLE, for all of these.
HINTS = (
    ("proxy returned", "the proxy refuses. It must allow CONNECT to the coordinator's port"),
    ("Connection refused", "nothing listens there. Check the port, or ask the coordinator's operator whether it runs"),
    ("not found", "the name does not resolve. Check its spelling, and this machine's DNS"),
    ("timed out", "no answer in time. A firewall drops the packets, or the machine is down or overloaded"),
    ("expired", "the server's certificate has expired. Check this clock; its operator runs `init --renew-server`"),
    ("not yet valid", "the server's certificate is not valid yet. Check the clocks of both machines"),
    ("Hostname", "the server's certificate is for another name. Dial that name, or ask its operator to sign this one"),
    (
        "VERIFY_FAILED",
        "the server's certificate is not from the authority in ca.pem. Check the address, or enrol again",
    ),
    ("WRONG_VERSION", "the server does not speak TLS: another service, or a coordinator run with --insecure"),
    (
        "reset",
        "the server closed the connection. It is no coordinator, or a firewall cut the connection. Check the port",
    ),
    ("HTTP/2", "the server does not speak gRPC. Check the port"),
    (
        "Socket closed",
        "the server closed the connection. It rejected this site's certificate (ask its operator for a new invitation), or is "
        "not a coordinator",
    ),
)
PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")  # gRPC reads the first that is set


def explained(details: str) -> str:
    """The hint for gRPC's `details`, with its last error and the proxy variable that is set."""
    hint = next((hint for text, hint in HINTS if text in details), "no connection")
    proxy = next((f"; proxy from {name}" for name in PROXY_VARIABLES if os.environ.get(name)), "")
    return f"{hint} (gRPC: {details.rpartition('last error: ')[2] or 'no answer'}{proxy})"


FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
PAUSE_WHEN_REFUSED = 30.0  # the coordinator rejected this site: its operator has to act first
T = TypeVar("T")


class Connection(Protocol):
    """One stream to the coordinator. A broken stream raises `ConnectionError`."""

    async def read(self) -> bytes | None:
        """The next frame; None when the coordinator ends the stream."""
        ...

    async def write(self, frame: bytes) -> None: ...

    async def finish(self) -> None:
        """Close the writing side."""
        ...


class Dialler(Protocol):
    """Opens connections. `connect` raises `NoAnswer` with the reason."""

    @property
    def address(self) -> str:
        """host:port."""
        ...

    def connect(self, timeout: float) -> AbstractAsyncContextManager[Connection]: ...


class NoAnswer(Exception):
    """No session; a retry can help."""


class LostSession(Exception):
    """A session ended early."""


class SessionRefused(LostSession):
    """The coordinator rejected the session for a reason that its operator can fix."""


@dataclass(frozen=True)
class Dial:
    """Settings of the connection.

    Parameters
    ----------
    dialler
        opens connections.
    timeout
        seconds without a session before the agent gives up.
    attempt
        seconds of one attempt to connect.
    jitter
        returns a random pause between two limits.
    """

    dialler: Dialler
    timeout: float
    attempt: float = 15.0
    jitter: Callable[[float, float], float] = random.uniform


async def keep_dialling(
    conversation: Callable[[Connection, Callable[[], None]], Awaitable[T]], dial: Dial, note: Callable[[str], None]
) -> T:
    """Connect, and reconnect, until a conversation is complete.

    Parameters
    ----------
    conversation
        one session on a connection. It calls its second argument for each received message, and raises
        `ConnectionError` or `LostSession` if the stream ends early.
    dial
        settings and timeout.
    note
        receives sentences for the operator.

    Raises
    ------
    Unreachable
        no session for ``dial.timeout`` seconds.
    """
    loop = asyncio.get_running_loop()
    pause, last_session = FIRST_PAUSE, loop.time()
    while True:
        try:
            return await _session(conversation, dial, dial.timeout - (loop.time() - last_session))
        except NoAnswer as lost:
            reason = str(lost)
        except SessionRefused as lost:
            reason, last_session, pause = str(lost), loop.time(), PAUSE_WHEN_REFUSED
        except LostSession as lost:  # there was a session: timeout and pause start again
            reason, last_session, pause = str(lost), loop.time(), FIRST_PAUSE
        waited, address = loop.time() - last_session, dial.dialler.address
        if waited >= dial.timeout:
            tried = f"{address}: {reason} (tried for {waited:.0f} s)"
            raise Unreachable(f"{tried}. Start the agent again when the coordinator is up.")
        limit = "no timeout" if math.isinf(dial.timeout) else f"timeout in {dial.timeout - waited:.0f} s"
        since = f" for {waited:.0f} s" if waited >= 1 else ""
        note(f"not connected to {address}{since}: {reason}; trying again ({limit})")
        await asyncio.sleep(min(dial.jitter(0.5 * pause, 1.5 * pause), dial.timeout - waited))
        pause = max(pause, min(LONGEST_PAUSE, 2 * pause))


async def _session(
    conversation: Callable[[Connection, Callable[[], None]], Awaitable[T]], dial: Dial, left: float
) -> T:
    loop, heard = asyncio.get_running_loop(), False

    def hear() -> None:
        nonlocal heard
        heard = True

    async with dial.dialler.connect(min(dial.attempt, max(left, 1.0))) as connection:
        since = loop.time()
        try:
            return await conversation(connection, hear)
        except SessionRefused:
            raise
        except (ConnectionError, LostSession) as error:
            # Another service at that address closes every stream immediately. That is no session: the timeout continues.
            kind = LostSession if heard or loop.time() - since > dial.attempt else NoAnswer
            raise kind(f"the stream broke ({error})") from None
