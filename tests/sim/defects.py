"""Defects put back into the product, each with a seed of the storm that finds it.

A change of what a storm draws, or of what its processes send, changes every story. Then find the
seeds again: `python tests/sim/defects.py "the ledger is not synced" [FIRST]`.
"""

import itertools
import multiprocessing.connection
import sys

from tests.storm import simulation
from tests.storm.story import story_of

# Defects that real drills found, or that would be as bad: (the patch, a seed that finds it). Seeds
# below 1,000 each.
DEFECTS = {
    "a restarted coordinator forgets the ends of runs": (
        (
            "from coordinator.store.runs import RunStore; RunStore.end_for = lambda self, run,"
            " site: None"
        ),
        11,
    ),
    "the ledger is not synced": (
        (
            "from coreg_wire.files import disk; disk.AppendFile.write = lambda self, data:"
            " self._file.write(data)"
        ),
        0,
    ),
    "the context of masks does not change from step to step": (
        """
from site_agent.identity.run_keys import AttemptSeal
seal = AttemptSeal.mask
def mask(self, context, words, sites):
    self.used.clear()
    return seal(self, bytes(32), words, sites)
AttemptSeal.mask = mask
""",
        0,
    ),
    "a site stores its result after its last answer": (
        """
from coreg_core.messages import Finished
from site_agent.service.workers import RunWorkers
handled, store = RunWorkers._handled, RunWorkers._store
def late(self, worker, message, outbox):
    result = worker.participant.result
    if isinstance(message, Finished) and result is not None:
        store(self, worker, result)
    return handled(self, worker, message, outbox)
RunWorkers._handled, RunWorkers._store = late, lambda self, worker, result: None
""",
        6,
    ),
    "a site keeps the result of an earlier attempt": (
        """
from site_agent.machine.site import SiteMachine
def store(self, result):
    self.__dict__["first"] = self.__dict__.get("first") or result
SiteMachine.result = property(lambda self: self.__dict__.get("first"), store)
""",
        82,
    ),
    "an alignment begins again under its old name": (
        """
from coordinator.store.runs import RunStore
def begin(self, plan, at):
    with self.transaction():
        self._begin(plan, at)
    return plan, self.begun(plan.run)
RunStore.begin = begin
""",
        5,
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
    context = multiprocessing.get_context("forkserver")  # importing takes seconds each time
    context.set_forkserver_preload(["tests.storm.simulation"])
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
    first = 0
    if len(sys.argv) > 2:
        first = int(sys.argv[2])
    for seed in itertools.count(first):
        if broken := broken_by(sys.argv[1], seed):
            sys.stdout.write(f"{sys.argv[1]}: seed {seed} {broken}\n")
            break
