"""Live through a story: the federation works in simulated time while its faults happen.

After the last fault every process is up and every link works. Then each submitted run must end,
with the bits of a calm run.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
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
    folder = tempfile.TemporaryDirectory(prefix="storm-", dir=memory if memory.is_dir() else None)
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
    loop = world.loop
    runs = [f"run-{i}" for i in range(len(story.runs))]
    world.network.runs |= {*runs, *(f"{run}-ids-{number}" for run in runs for number in range(50))}
    for process in EVERYWHERE:
        world.start(process)
    await asyncio.sleep(1.0)
    plans = _plans(world, story)
    world.unsubmitted |= set(plans)
    for (at, study), plan in zip(story.runs, plans.values(), strict=True):
        loop.call_later(
            at, _submit, world, plan, f"run-{int(plan.run[4:]) - 1}" if study in NEEDS else ""
        )
    if story.asks or any(fault.kind == "lie" for fault in story.faults):  # a lie can change a key
        loop.call_later(1.0, _decide, world)
    for fault in story.faults:
        loop.call_later(fault.at, _happens, world, fault)
    quiet = max([STORM, *(fault.at + fault.seconds for fault in story.faults)]) + 10.0
    await asyncio.sleep(quiet)
    world.network.armed.clear()
    while not (over := is_over(world, plans)) and loop.time() < quiet + PATIENCE:
        await asyncio.sleep(5.0)
        if world.sites_restored and loop.time() > quiet + LONG:
            for run in plans:  # the operator: a site with an older ledger never answers again
                world.cancel(run)
    if not over:
        stages = {run: (summary.stop, summary.steps) for run, summary in world.runs().items()}
        told.broken.append(f"after {loop.time():.0f} s not every run has ended: {stages}")
    await check_tasks(world, told.broken)
    studies = {run: (story.runs[i][1], plan) for i, (run, plan) in enumerate(plans.items())}
    check(world, studies, story.faults, told, twins)


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
    loop = world.loop
    if fault.moment:
        world.network.armed.append(
            (fault.where, fault.moment, lambda: _happens(world, replace(fault, moment="")))
        )
        return
    match fault.kind:
        case "kill":
            world.kill(fault.where)
            loop.call_later(fault.seconds, world.start, fault.where)
        case "crash loop":
            world.kill(fault.where)
            loop.call_later(1.0, world.start, fault.where)
            if fault.seconds > 1.0:
                _happens(world, replace(fault, seconds=fault.seconds - 1.0, moment="Answer"))
        case "power cut":
            world.power_cut(fault.where)
            loop.call_later(fault.seconds, world.start, fault.where)
        case "old store":
            world.back_up()
            loop.call_later(fault.seconds, world.restore)
        case "old site":
            world.back_up_site(fault.where)
            loop.call_later(fault.seconds, world.restore_site, fault.where)
        case "break":
            world.network.break_links(fault.where)
        case "cut off":
            world.network.cut_off.add(fault.where)
            world.network.stall(fault.where, fault.seconds)
            loop.call_later(fault.seconds, world.network.cut_off.discard, fault.where)
        case "stall":
            world.network.stall(fault.where, fault.seconds)
        case "slow disk":
            loop.slow[fault.where] = min(fault.seconds / 20.0, 1.0)
            loop.call_later(fault.seconds, loop.slow.pop, fault.where, None)
        case "full disk":
            world.durable.full.add(fault.where)
            loop.call_later(fault.seconds, world.durable.full.discard, fault.where)
        case "noise" | "lie":
            world.network.damage(fault.where, lie=fault.kind == "lie")
        case "reload":
            world.reload(limit=1 + int(fault.seconds) % 3)
        case "revoke":
            world.certificates.revoke(fault.where)
            loop.call_later(fault.seconds, world.certificates.sign, fault.where)
        case "renew":
            world.certificates.renew(fault.where)
        case "clock":
            world.clocks[fault.where] = JUMPS[int(fault.seconds) % len(JUMPS)]
            loop.call_later(fault.seconds, world.clocks.pop, fault.where, None)
        case "wrong peer":
            world.wrong_peer(fault.where, int(fault.seconds) % 3, fault.seconds)
        case "unlist":
            world.reload([site for site in SITES if site != fault.where])
            loop.call_later(fault.seconds, world.reload)
        case "cancel":
            world.cancel(fault.where)
        case "refuse":
            world.refusing.add(fault.where)
        case _:
            raise AssertionError(fault.kind)


def calm_models(story: Story) -> dict[str, Any]:
    """The sites' results of each of its studies without a fault."""
    return {study: _calm(study) for _, study in story.runs}


@cache
def _calm(study: str) -> dict[str, Any]:
    before = ((0.0, NEEDS[study]),) if study in NEEDS else ()
    told, found = _simulated(Story(-1, (*before, (0.0, study)), ()), {})
    if told.broken:
        raise AssertionError(f"a calm run of {study}: {told.broken}")
    return found
