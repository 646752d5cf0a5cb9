"""Defects put back into the product, each with a seed of the storm that finds it.

A change of what a storm draws, or of what its processes send, changes every story. Then find the seeds again:
`python tests/sim/defects.py "the ledger is not synced" [FIRST]`.
"""

import itertools
import multiprocessing.connection
import sys

from tests.storm import simulation
from tests.storm.story import story_of

# Defects that real drills found, or that would be as bad: (the patch, a seed that finds it). Seeds below 1,000 each.
DEFECTS = {
    "a restarted coordinator forgets who has not fetched its model": (
        "from coordinator.store.runs import RunStore; RunStore.undelivered = lambda self: {}",
        285,
    ),
    "the ledger is not synced": (
        "from coreg_wire.files import disk; disk.AppendFile.write = lambda self, data: self._file.write(data)",
        6,
    ),
    "the context of masks does not change from step to step": (
        """
from site_agent.identity.run_keys import AttemptSeal
from site_agent.machine.replica import Replica
seal = AttemptSeal.mask
Replica._context = lambda self, head: bytes(32)
def mask(self, *arguments, **options):
    self.used.clear()
    return seal(self, *arguments, **options)
AttemptSeal.mask = mask
""",
        0,
    ),
    "the end of a run is not synced to the run store": (
        """
from coordinator.store.runs import RunStore
from coordinator.store.schema import Tables
RunStore.transaction = lambda self, *, durable=True: Tables.transaction(self, durable=False)
""",
        55,
    ),
    "a session leaves a task behind": (
        """
import asyncio
from coordinator.transports.sessions import Sessions
converse, kept = Sessions._converse, []
async def _converse(self, *arguments):
    kept.append(asyncio.create_task(asyncio.Event().wait()))
    await converse(self, *arguments)
Sessions._converse = _converse
""",
        1,
    ),
}


def _live_through(defect: str, seed: int, told: multiprocessing.connection.Connection) -> None:
    story = story_of(seed)
    calm = simulation.calm_models(story)
    exec(DEFECTS[defect][0], {})
    told.send(simulation.live_through(story, calm).broken)


def broken_by(defect: str, seed: int, timeout: float = 1000.0) -> list[str]:
    """What a storm breaks in a process with this defect."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_live_through, args=(defect, seed, theirs))
    process.start()
    theirs.close()
    try:
        assert mine.poll(timeout), f"seed {seed}: no answer within {timeout:g} s"
        return mine.recv()
    finally:
        process.kill()
        process.join()


if __name__ == "__main__":
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for seed in itertools.count(first):
        if broken := broken_by(sys.argv[1], seed):
            sys.stdout.write(f"{sys.argv[1]}: seed {seed} {broken}\n")
            break
