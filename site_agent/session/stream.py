"""One open stream of an agent. Each message is recorded in the ledger before it leaves."""

import asyncio
import contextlib
from dataclasses import dataclass, field

from coreg_core.protocol.messages import FromSite, Leaving
from coreg_wire.transport.codec import Assembler, site_message_to_frames
from site_agent.ledger import Ledger
from site_agent.session.counters import Counters
from site_agent.session.dial import Connection

CLOSE_GRACE = 5.0  # seconds for the coordinator to end the stream after the site's last message


def _seen(reading: "asyncio.Task[bytes | None]") -> None:
    """Otherwise asyncio logs the error of a stream that breaks while the session ends."""
    if not reading.cancelled():
        reading.exception()


@dataclass(eq=False)
class Session:
    """One open stream. ``listening``: whether the coordinator still reads; if not, its last message can still arrive."""

    connection: Connection
    ledger: Ledger
    counters: Counters
    assembler: Assembler = field(default_factory=Assembler)
    listening: bool = True
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _reading: "asyncio.Task[bytes | None] | None" = None

    def reading(self) -> "asyncio.Task[bytes | None]":
        """The task that reads the next frame, for `read`. It is not cancelled before `close`: that would end the stream."""
        if self._reading is None:
            self._reading = asyncio.create_task(self.connection.read())
            self._reading.add_done_callback(_seen)
        return self._reading

    async def read(self) -> bytes | None:
        """The next frame; None when the coordinator ends the stream."""
        frame = await asyncio.shield(self.reading())
        self._reading = None
        return frame

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def say(self, message: FromSite) -> None:
        """Record and send a message that needs no work."""
        leaving = await asyncio.to_thread(self.ledger.record, message)
        await self.send(list(site_message_to_frames(leaving)))

    async def send(self, frames: list[bytes]) -> None:
        """Send frames that are recorded already."""
        async with self._turn:
            if not self.listening:
                return
            try:
                for frame in frames:
                    await self.connection.write(frame)
            except ConnectionError:  # the reading side reports the cause
                self.listening = False
            self.counters.bytes["sent"] += sum(map(len, frames))

    async def leave(self, reason: str) -> None:
        """Send the site's last message, and wait until the coordinator ends the stream."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            await self.say(Leaving(reason))
            await self.connection.finish()
            async with asyncio.timeout(CLOSE_GRACE):
                while await self.read() is not None:
                    pass
