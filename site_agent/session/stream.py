"""One open stream of an agent that stays: what leaves over it stands in the ledger first."""

import asyncio
import time
from dataclasses import dataclass, field

from coreg_core.protocol.messages import FromSite
from coreg_wire.transport.chunk_size import Pace
from coreg_wire.transport.codec import Assembler, site_message_to_frames
from site_agent.ledger import Ledger
from site_agent.session.counters import Tally
from site_agent.session.dial import Call, write


@dataclass(eq=False)
class Session:
    """One open stream."""

    call: Call
    ledger: Ledger
    assembler: Assembler
    failed: "asyncio.Future[None]"
    tally: Tally
    pace: Pace = field(default_factory=Pace)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    listened_to: bool = True
    workers: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)

    async def say(self, message: FromSite) -> None:
        """A message that needs no site: into the ledger, then out."""
        leaving = await asyncio.to_thread(self.ledger.record, message)
        await self.send(list(site_message_to_frames(leaving)))

    async def send(self, frames: list[bytes], run: str = "") -> None:
        """What stands in the ledger already; of a run, where the coordinator says something about it when it has all of it."""
        async with self.turn:
            if self.listened_to:
                size = sum(map(len, frames))
                self.pace.goes(run, size, time.monotonic())
                self.listened_to = await write(self.call, frames)
                self.pace.whole(run)
                self.tally.bytes["sent"] += size
