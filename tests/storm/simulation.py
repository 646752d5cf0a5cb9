"""Live through a story: the federation works in simulated time while its faults happen.

After the last fault every process is up and every link works. Then each submitted run must end,
with the bits of a calm run.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from coreg_core.plan import Plan
from coreg_core.secure import cross_products
from coreg_wire import clock
from tests.storm.invariants import Told, check, check_tasks, is_over, keystreams_watched
from tests.storm.loop import VirtualLoop, followed
from tests.storm.story import (
    EVERYWHERE,
    GOOD,
    JUMPS,
    LONG,
    NEEDS,
    PATIENCE,
    STORM,
    STUDIES,
    Fault,
    Story,
)
from tests.storm.world import SITES, World


def live_through(story: Story, twins: Mapping[str, Any]) -> Told:
    """Simulate a story, and check every invariant.

    ``twins``: the sites' models of each study without a fault.
    """
    told, _ = _simulated(story, twins)
    return told


def _simulated(story: Story, twins: Mapping[str, Any]) -> tuple[Told, dict[str, Any]]:
    """How the story ended, in a folder of its own, and the sites' results of its last run."""
    chance = random.Random(f"chances of {story.seed}")
    loop = VirtualLoop(chance)
    told = Told()
    memory = Path("/dev/shm")
    if not memory.is_dir():
        memory = None
    folder = tempfile.TemporaryDirectory(prefix="storm-", dir=memory)
    with folder as name, followed() as durable, keystreams_watched(told.broken), short_secrets():
        world = World(Path(name), loop, chance, durable, asks=story.asks)
        with alive(world, loop):
            try:
                loop.run_until_complete(_live(world, story, told, twins))
                last = _plans(world, story)[f"run-{len(story.runs) - 1}"]
                models = {site: world.result(site, last) for site in SITES}
            except RuntimeError as error:  # of the loop: every process waits, and no timer runs
                told.broken.append(f"a hang: {error}")
                models = {}
    told.trace = world.network.trace.hexdigest()[:16]
    told.seconds = loop.time()
    told.answers = len(world.network.answers)
    return told, models


@contextmanager
def alive(world: World, loop: VirtualLoop) -> Iterator[None]:
    """The processes run in this loop, and are killed at the end."""
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        clock.source = time.time
        for process in list(world.processes):
            world.kill(process)
        _GRAVES.append((loop, world.graves))


@contextmanager
def short_secrets() -> Iterator[None]:
    """Of cross products: the sums are the same, and made in a moment."""
    real = cross_products.SECRET_ROWS, cross_products.RANDOM_ROWS
    cross_products.SECRET_ROWS = 64
    cross_products.RANDOM_ROWS = 320
    try:
        yield
    finally:
        cross_products.SECRET_ROWS, cross_products.RANDOM_ROWS = real


_GRAVES: list[Any] = []  # until the end of the process; see `World.graves`


def _plans(world: World, story: Story) -> dict[str, Plan]:
    return {
        f"run-{i}": world.plan_of(f"run-{i}", STUDIES[study], f"run-{i - 1}")
        for i, (_, study) in enumerate(story.runs)
    }


async def _live(world: World, story: Story, told: Told, twins: Mapping[str, Any]) -> None:
    # (1) Every process starts; runs are submitted and faults happen at their times.
    for process in EVERYWHERE:
        world.start(process)
    _expect_runs(world, len(story.runs))
    await asyncio.sleep(1.0)
    plans = _plans(world, story)
    _schedule(world, story, plans)
    # (2) After the last fault everything works.
    ends = [fault.at + fault.seconds for fault in story.faults]
    quiet = max([STORM, *ends]) + 10.0
    await asyncio.sleep(quiet)
    world.network.armed.clear()
    # (3) Then every run ends.
    if not await _all_end(world, plans, quiet):
        stages = {run: (summary.stop, summary.steps) for run, summary in world.runs().items()}
        told.broken.append(f"after {world.loop.time():.0f} s not every run has ended: {stages}")
    # (4) Every invariant holds.
    await check_tasks(world, told.broken)
    studies = {}
    for (_, study), (run, plan) in zip(story.runs, plans.items(), strict=True):
        studies[run] = (study, plan)
    check(world, studies, story.faults, told, twins)


def _expect_runs(world: World, count: int) -> None:
    """The names of all runs that can be, for the network's checks."""
    for i in range(count):
        run = f"run-{i}"
        world.network.runs.add(run)
        world.network.runs.update(f"{run}-ids-{number}" for number in range(50))


def _schedule(world: World, story: Story, plans: Mapping[str, Plan]) -> None:
    loop = world.loop
    world.unsubmitted.update(plans)
    for i, ((at, study), plan) in enumerate(zip(story.runs, plans.values(), strict=True)):
        needed = ""
        if study in NEEDS:
            needed = f"run-{i - 1}"
        loop.call_later(at, _submit, world, plan, needed)
    lies = any(fault.kind == "lie" for fault in story.faults)
    if story.asks or lies:  # a lie can change a key
        loop.call_later(1.0, _decide, world)
    for fault in story.faults:
        loop.call_later(fault.at, _happens, world, fault)


async def _all_end(world: World, plans: Mapping[str, Plan], quiet: float) -> bool:
    while world.loop.time() < quiet + PATIENCE:
        if is_over(world, plans):
            return True
        await asyncio.sleep(5.0)
        if world.sites_restored and world.loop.time() > quiet + LONG:
            for run in plans:  # the operator: a site with an older ledger never answers again
                world.cancel(run)
    return is_over(world, plans)


def _submit(world: World, plan: Plan, needed: str) -> None:
    """Submit a run, if need be once the run whose models it uses has ended."""
    earlier = world.runs().get(needed)
    if not needed or (earlier is not None and earlier.ended is not None and earlier.stop in GOOD):
        world.unsubmitted.discard(plan.run)
        world.submit(plan)
    elif (earlier is None and not world.restored) or (
        earlier is not None and earlier.ended is None
    ):
        world.loop.call_later(7.0, _submit, world, plan, needed)
    else:
        world.unsubmitted.discard(plan.run)
        world.untrained.add(plan.run)


def _decide(world: World) -> None:
    world.decide()
    world.loop.call_later(world.chance.uniform(1.0, 20.0), _decide, world)


def _happens(world: World, fault: Fault) -> None:
    """Let a fault happen: now, or at the moment that it waits for."""
    if fault.moment:
        now = replace(fault, moment="")
        world.network.armed.append((fault.where, fault.moment, lambda: _happens(world, now)))
    else:
        FAULTS[fault.kind](world, fault)


def _later(world: World, fault: Fault, action: Callable[..., Any], *arguments: Any) -> None:
    """What ends the fault, after its seconds."""
    world.loop.call_later(fault.seconds, action, *arguments)


def _kill(world: World, fault: Fault) -> None:
    world.kill(fault.where)
    _later(world, fault, world.start, fault.where)


def _crash_loop(world: World, fault: Fault) -> None:
    world.kill(fault.where)
    world.loop.call_later(1.0, world.start, fault.where)
    if fault.seconds > 1.0:
        _happens(world, replace(fault, seconds=fault.seconds - 1.0, moment="Answer"))


def _power_cut(world: World, fault: Fault) -> None:
    world.power_cut(fault.where)
    _later(world, fault, world.start, fault.where)


def _old_store(world: World, fault: Fault) -> None:
    world.back_up()
    _later(world, fault, world.restore)


def _old_site(world: World, fault: Fault) -> None:
    world.back_up_site(fault.where)
    _later(world, fault, world.restore_site, fault.where)


def _break(world: World, fault: Fault) -> None:
    world.network.break_links(fault.where)


def _cut_off(world: World, fault: Fault) -> None:
    world.network.cut_off.add(fault.where)
    world.network.stall(fault.where, fault.seconds)
    _later(world, fault, world.network.cut_off.discard, fault.where)


def _stall(world: World, fault: Fault) -> None:
    world.network.stall(fault.where, fault.seconds)


def _slow_disk(world: World, fault: Fault) -> None:
    world.loop.slow[fault.where] = min(fault.seconds / 20.0, 1.0)
    _later(world, fault, world.loop.slow.pop, fault.where, None)


def _full_disk(world: World, fault: Fault) -> None:
    world.durable.full.add(fault.where)
    _later(world, fault, world.durable.full.discard, fault.where)


def _damage(world: World, fault: Fault) -> None:
    world.network.damage(fault.where, lie=fault.kind == "lie")


def _reload(world: World, fault: Fault) -> None:
    world.reload(limit=1 + int(fault.seconds) % 3)


def _revoke(world: World, fault: Fault) -> None:
    world.certificates.revoke(fault.where)
    _later(world, fault, world.certificates.sign, fault.where)


def _renew(world: World, fault: Fault) -> None:
    world.certificates.renew(fault.where)


def _clock(world: World, fault: Fault) -> None:
    world.clocks[fault.where] = JUMPS[int(fault.seconds) % len(JUMPS)]
    _later(world, fault, world.clocks.pop, fault.where, None)


def _wrong_peer(world: World, fault: Fault) -> None:
    world.wrong_peer(fault.where, int(fault.seconds) % 3, fault.seconds)


def _unlist(world: World, fault: Fault) -> None:
    world.reload([site for site in SITES if site != fault.where])
    _later(world, fault, world.reload)


def _cancel(world: World, fault: Fault) -> None:
    world.cancel(fault.where)


def _refuse(world: World, fault: Fault) -> None:
    world.refusing.add(fault.where)


FAULTS: dict[str, Callable[[World, Fault], None]] = {
    "kill": _kill,
    "crash loop": _crash_loop,
    "power cut": _power_cut,
    "old store": _old_store,
    "old site": _old_site,
    "break": _break,
    "cut off": _cut_off,
    "stall": _stall,
    "slow disk": _slow_disk,
    "full disk": _full_disk,
    "noise": _damage,
    "lie": _damage,
    "reload": _reload,
    "revoke": _revoke,
    "renew": _renew,
    "clock": _clock,
    "wrong peer": _wrong_peer,
    "unlist": _unlist,
    "cancel": _cancel,
    "refuse": _refuse,
}


def calm_models(story: Story) -> dict[str, Any]:
    """The sites' results of each of its studies without a fault."""
    return {study: _calm(study) for _, study in story.runs}


@cache
def _calm(study: str) -> dict[str, Any]:
    before = ()
    if study in NEEDS:
        before = ((0.0, NEEDS[study]),)
    told, found = _simulated(Story(-1, (*before, (0.0, study)), ()), {})
    if told.broken:
        raise AssertionError(f"a calm run of {study}: {told.broken}")
    return found
