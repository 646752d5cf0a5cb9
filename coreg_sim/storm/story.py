"""One storm: a seed draws studies and faults, the federation lives through them, and the invariants are checked.

After the last fault every process is up and every link works. Then each submitted run must end, with the bits of a calm run.
"""

import asyncio
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from coreg_core.errors import CoregError
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_sim.storm.disk import followed
from coreg_sim.storm.keystreams import keystreams_watched
from coreg_sim.storm.loop import VirtualLoop
from coreg_sim.storm.world import SITES, World
from site_agent.ledger import read_ledger

_STUDY = '[study]\nname = "{name}"\ndata = "patients"\n[model]\nobjective = '
STUDIES = {
    "agreement": f'{_STUDY}"agreement"\ncoupling = 0.1\n',
    "path": f'{_STUDY}"agreement"\ncoupling = [0.01, 1.0]\n',
    "consensus": f'{_STUDY}"agreement"\ncoupling = 1.0\n[schedule]\nname = "consensus"\nmax_rounds = 12\n',
    "additive": f'{_STUDY}"additive"\nprobes = 4\nlandmarks = 20\ntuning_steps = 2\n',
    "forecast": f'{_STUDY}"additive"\nprobes = 4\nlandmarks = 20\ntuning_steps = 2\nforecast = true\n',
    "scoring": '[study]\nname = "{name}"\ndata = "new"\n[model]\nobjective = "scoring"\n',
    "alignment": f'{_STUDY}"alignment"\n',
}
NEEDS = {"scoring": "additive"}  # the study whose models it uses: the run before it
# How often each is drawn. "old store" and "old site" put an older backup of the run store, or of a ledger, in its place.
KINDS = {
    "kill": 5, "power cut": 3, "break": 4, "cut off": 3, "stall": 3, "slow disk": 2, "full disk": 1.5, "noise": 1, "lie": 1,
    "cancel": 1, "refuse": 0.5, "old store": 1, "old site": 0.5,
}  # fmt: skip
GOOD = {"CONVERGED", "CONVERGED_TO_ROUNDING", "MAX_ROUNDS"}  # outcomes with models
# A second stream: SIGHUP, a certificate revoked for a while, a site off the list for a while; and the coordinator's power.
OPERATED = ("reload", "revoke", "unlist", "power cut")
AT_A_MESSAGE = ("kill", "power cut", "break", "full disk", "noise", "lie", "old store", "old site")
AT_A_SITE = ("power cut", "break", "full disk", "noise", "lie", "cut off", "stall", "old site")
STORM = 90.0  # seconds in which studies are submitted and faults begin
PATIENCE = 3600.0  # virtual seconds after the last fault until every run must have ended
MANY = 12  # faults of a storm at most
LONG = 700.0  # seconds of absence beyond every timeout of the coordinator
IDLE = {"coordinator": 3 + 2 * len(SITES)} | dict.fromkeys(SITES, 7)  # tasks of a process when no run is under way


@dataclass(frozen=True)
class Fault:
    """A fault at a process or a run, for some seconds; with ``moment``, when the next message of that name leaves.

    It is the site's next message; for the coordinator, and for a receipt (Fetched), that of any site.
    """

    at: float
    kind: str
    where: str
    seconds: float
    moment: str = ""

    def __str__(self) -> str:
        when = f" at the next {self.moment}" if self.moment else ""
        return f"{self.at:7.2f} s  {self.kind} {self.where}{when} for {self.seconds:.2f} s"


@dataclass(frozen=True)
class Story:
    """What a seed draws: (time, study) of each run, and the faults in order; ``asks``: operators approve each run."""

    seed: int
    runs: tuple[tuple[float, str], ...]
    faults: tuple[Fault, ...]
    asks: bool = False

    def __str__(self) -> str:
        submitted = [
            f"{at:7.2f} s  run-{i} of the study {study} is submitted" for i, (at, study) in enumerate(self.runs)
        ]
        approved = ["   0.00 s  every site's operator approves each run"] * self.asks
        return "\n".join(
            sorted([*approved, *submitted, *map(str, self.faults)], key=lambda line: float(line.split()[0]))
        )


@dataclass
class Told:
    """How a storm ended: broken invariants, a digest of all messages and times, the virtual seconds, the number of answers."""

    broken: list[str] = field(default_factory=list)
    trace: str = ""
    seconds: float = 0.0
    answers: int = 0


def story_of(seed: int, *, operated: bool = True) -> Story:
    """The story of a seed; ``operated``: with the second stream of faults too."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    runs: list[tuple[float, str]] = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        at, study = chance.uniform(0, 0.6 * STORM), chance.choice(list(STUDIES))
        runs += [(at, before)] if (before := NEEDS.get(study)) else []
        runs.append((at, study))
    asks = chance.random() < 0.2
    faults = []
    for _ in range(chance.randrange(MANY + 1)):
        kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
        where = chance.choice(("coordinator", *SITES))
        if kind in ("cancel", "refuse"):
            where = f"run-{chance.randrange(len(runs))}"
        elif kind in AT_A_SITE:
            where = chance.choice(SITES)
        elif kind == "old store":
            where = "coordinator"
        # Faults cluster around a moment in which something happens: a run takes a second or two of virtual time.
        begun = chance.choice(runs)[0]
        at = begun + chance.expovariate(0.5) if chance.random() < 0.8 else chance.uniform(0, STORM)
        seconds = min(chance.expovariate(0.1), 60.0)
        moment = chance.choice(("Offer", "Answer", "Fetched", "", "", "")) if kind in AT_A_MESSAGE else ""
        at = begun if moment in ("Offer", "Fetched") else at  # a run has few of them
        if kind == "kill" and where in SITES and chance.random() < 0.2:  # away for longer than the coordinator waits
            seconds = chance.uniform(LONG, 5 * LONG)
            faults.append(Fault(at + chance.uniform(0, seconds), "kill", "coordinator", chance.expovariate(0.1)))
        faults.append(Fault(at, kind, where, seconds, moment))
    chance = random.Random(f"operators of {seed}")  # noqa: S311 - a stream of its own: the draws above stay as they are
    for _ in range(chance.choice((0, 0, 1, 2)) if operated else 0):
        kind = chance.choice(OPERATED)
        where = chance.choice({"reload": ("coordinator", *SITES), "power cut": ("coordinator",)}.get(kind, SITES))
        at = chance.choice(runs)[0] + chance.expovariate(0.3)
        moment = chance.choice(("Offer", "Answer", "Fetched", "Fetched")) if kind == "power cut" else ""
        faults.append(Fault(at, kind, where, min(chance.expovariate(0.05), 120.0), moment))
    return Story(seed, tuple(runs), tuple(sorted(faults, key=lambda fault: fault.at)), asks)


def live_through(story: Story, twins: Mapping[str, Any]) -> Told:
    """Simulate a story, and check every invariant. ``twins``: the sites' models of each study without a fault."""
    told, _ = _simulated(story, twins)
    return told


def _simulated(story: Story, twins: Mapping[str, Any]) -> tuple[Told, dict[str, Any]]:
    """How the story ended, in a folder of its own, and the sites' results of its last run."""
    chance = random.Random(f"chances of {story.seed}")  # noqa: S311 - a simulation
    loop, told = VirtualLoop(chance), Told()
    memory = Path("/dev/shm")  # noqa: S108 - the folder below it is made by tempfile
    folder = tempfile.TemporaryDirectory(prefix="storm-", dir=memory if memory.is_dir() else None)
    with folder as name, followed() as durable, keystreams_watched(told.broken):
        world = World(Path(name), loop, chance, durable, asks=story.asks)
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(_live(world, story, told, twins))
            last = _plans(world, story)[f"run-{len(story.runs) - 1}"]
            models = {site: world.result(site, last) for site in SITES}
        except RuntimeError as error:  # of the loop: every process waits, and no timer runs
            told.broken.append(f"a hang: {error}")
            models = {}
        finally:
            asyncio.set_event_loop(None)
            for process in list(world.processes):
                world.kill(process)
            _GRAVES.append((loop, world.graves))
    told.trace, told.seconds = world.network.trace.hexdigest()[:16], loop.time()
    told.answers = len(world.network.answers)
    return told, models


_GRAVES: list[Any] = []  # until the end of the process; see `World.graves`


def _plans(world: World, story: Story) -> dict[str, Plan]:
    return {
        f"run-{i}": world.plan_of(f"run-{i}", STUDIES[study], f"run-{i - 1}") for i, (_, study) in enumerate(story.runs)
    }


async def _live(world: World, story: Story, told: Told, twins: Mapping[str, Any]) -> None:
    loop = world.loop
    world.network.runs |= {f"run-{i}" for i in range(len(story.runs))}
    for process in ("coordinator", *SITES):
        world.start(process)
    await asyncio.sleep(1.0)
    plans = _plans(world, story)
    for (at, study), plan in zip(story.runs, plans.values(), strict=True):
        loop.call_later(at, _submit, world, plan, f"run-{int(plan.run[4:]) - 1}" if study in NEEDS else "")
    if story.asks:
        loop.call_later(1.0, _decide, world)
    for fault in story.faults:
        loop.call_later(fault.at, _happens, world, fault)
    quiet = max([STORM, *(fault.at + fault.seconds for fault in story.faults)]) + 10.0
    await asyncio.sleep(quiet)
    world.network.armed.clear()
    while not (over := _over(world, plans)) and loop.time() < quiet + PATIENCE:
        await asyncio.sleep(5.0)
    if not over:
        stages = {run: (summary.stop, summary.steps) for run, summary in world.runs().items()}
        told.broken.append(f"after {loop.time():.0f} s not every run has ended with its models fetched: {stages}")
    await _check_tasks(world, told.broken)
    studies = {run: (story.runs[i][1], plan) for i, (run, plan) in enumerate(plans.items())}
    _check(world, studies, story.faults, told, twins)


async def _check_tasks(world: World, broken: list[str]) -> None:
    """Nothing is left of faults and runs: within 130 s each process has the tasks of a process without a run."""
    tasks: dict[str, int] = {}
    for _ in range(10):
        await asyncio.sleep(13.0)
        tasks = {name: sum(not task.done() for task in process.tasks) for name, process in world.processes.items()}
        if tasks == IDLE:
            return
    broken.append(f"at rest the processes have {tasks} tasks, not {IDLE}")


def _submit(world: World, plan: Plan, needed: str) -> None:
    """Submit a run, if need be once the run whose models it uses is delivered."""
    earlier = world.runs().get(needed)
    if not needed or (earlier is not None and earlier.closed is not None and earlier.stop in GOOD):
        world.submit(plan)
    elif earlier is None or earlier.closed is None:
        world.loop.call_later(7.0, _submit, world, plan, needed)
    else:
        world.unsubmitted.add(plan.run)


def _decide(world: World) -> None:
    world.decide()
    world.loop.call_later(world.chance.uniform(1.0, 20.0), _decide, world)


def _over(world: World, plans: dict[str, Plan]) -> bool:
    """Whether every run is closed, and every site has the models of those that have some."""
    found = world.runs()
    if not world.restored and any(run not in found and run not in world.unsubmitted for run in plans):
        return False  # a store that was restored has lost those that were submitted after its backup
    known = [(plan, found[run]) for run, plan in plans.items() if run in found]
    good = [plan for plan, summary in known if summary.stop in GOOD]
    return all(summary.closed is not None for _, summary in known) and all(
        world.has_result(site, plan) for plan in good for site in SITES if site not in world.sites_restored
    )


def _happens(world: World, fault: Fault) -> None:
    loop = world.loop
    if fault.moment:
        world.network.armed.append((fault.where, fault.moment, lambda: _happens(world, replace(fault, moment=""))))
        return
    match fault.kind:
        case "kill":
            world.kill(fault.where)
            loop.call_later(fault.seconds, world.start, fault.where)
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
            world.reload(fault.where, limit=1 + int(fault.seconds) % 3)
        case "revoke":
            world.network.revoked.add(fault.where)
            loop.call_later(fault.seconds, world.network.revoked.discard, fault.where)
        case "unlist":
            world.reload("coordinator", [site for site in SITES if site != fault.where])
            loop.call_later(fault.seconds, world.reload, "coordinator")
        case "cancel":
            world.cancel(fault.where)
        case "refuse":
            world.refusing.add(fault.where)
        case _:
            raise AssertionError(fault.kind)


def _check(
    world: World,
    runs: dict[str, tuple[str, Plan]],
    faults: tuple[Fault, ...],
    told: Told,
    twins: Mapping[str, Any],
) -> None:
    broken, found = told.broken, world.runs()
    away = any(fault.seconds >= LONG for fault in faults)
    cancelled = {fault.where for fault in faults if fault.kind == "cancel"}
    for run, (study, plan) in runs.items():
        if (summary := found.get(run)) is None:
            if run not in cancelled | world.unsubmitted and not world.restored:
                broken.append(f"{run} is not on record")
            continue
        good = GOOD if study == "consensus" else GOOD - {"MAX_ROUNDS"}
        allowed = {"CANCELLED"} if run in cancelled else set()
        allowed |= {"SITE_FAULT"} if any(fault.kind == "noise" for fault in faults) else set()
        allowed |= {"REFUSED"} if run in world.refusing else set()
        # What a lie says may end a run in any way, but for a model that is wrong.
        allowed |= set(Outcome.__members__) if any(fault.kind == "lie" for fault in faults) else set()
        # The sites are ahead of the store, and say so; or its repeated questions use up what a site grants for the plan.
        allowed |= {"DAMAGED", "REFUSED"} if world.restored else set()
        allowed |= {"STALLED", "TOO_FEW_SITES"} if away else set()
        if summary.stop not in good | allowed:
            broken.append(f"{run} of {study} ended as {summary.stop}: {summary.reason}")
        if summary.stop in good:
            for site in SITES:
                result = world.result(site, plan)
                if result is None and site in world.sites_restored:
                    continue  # its older sums do not reach the end of the run
                if result is None:
                    broken.append(f"{site} has no result of {run}, which ended as {summary.stop}")
                elif study in twins and result != twins[study][site]:
                    broken.append(f"{site}'s result of {run} of {study} has other bits than in a calm run")
    broken += world.network.twice
    broken += [f"the loop's handler heard {error}" for error in world.loop.errors]
    broken += [end for end in world.ends if end.startswith("DEFECT")]
    _check_ledgers(world, broken)


def _check_ledgers(world: World, broken: list[str]) -> None:
    """Every answer that left stands in the site's ledger, whose chain is whole."""
    for site in (site for site in SITES if site not in world.sites_restored):
        try:
            entries = list(read_ledger(world.folder / site / "ledger.jsonl"))
        except CoregError as error:
            broken.append(f"{site}'s ledger: {error}")
            continue
        kept = {
            (e["run"], e["attempt"], e["step"], e["sha256"]) for e in entries if e["kind"] == "Answer" and "sha256" in e
        }
        left = {
            (run, attempt, step, sha)
            for (name, run, attempt, step), sha in world.network.answers.items()
            if name == site
        }
        if missing := left - kept:
            broken.append(f"{len(missing)} answers of {site} left and are not in its ledger")


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


def shrunk(story: Story) -> Story:
    """The story with as few faults as still break an invariant."""
    smaller = True
    while smaller:
        smaller = False
        for i in range(len(story.faults)):
            fewer = replace(story, faults=story.faults[:i] + story.faults[i + 1 :])
            if live_through(fewer, calm_models(fewer)).broken:
                story, smaller = fewer, True
                break
    return story
