"""What must hold at the end of every storm."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from coordinator.store.summaries import Summaries
from coreg_core.errors import CoregError
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.ledger import read_ledger
from site_agent.ledger.audit import audit, head_of
from tests.storm.story import GOOD, IDLE, LONG, Fault
from tests.storm.world import SITES, World, alike


@dataclass
class Told:
    """How a storm ended: broken invariants, a digest of all messages and times, the virtual seconds, the number of answers."""

    broken: list[str] = field(default_factory=list)
    trace: str = ""
    seconds: float = 0.0
    answers: int = 0


def is_over(world: World, plans: dict[str, Plan]) -> bool:
    """Whether every run is closed, and every site has the models of those that have some."""
    found = world.runs()
    if world.unsubmitted or any(run not in found and not world.may_lack(run) for run in plans):
        return False
    known = [(plan, found[run]) for run, plan in plans.items() if run in found]
    good = [plan for plan, summary in known if summary.stop in GOOD]
    return all(summary.closed is not None for _, summary in known) and all(
        world.has_result(site, plan) for plan in good for site in SITES if site not in world.sites_restored
    )


async def check_tasks(world: World, broken: list[str]) -> None:
    """Nothing is left of faults and runs: within 130 s each process has the tasks of a process without a run."""
    tasks: dict[str, int] = {}
    for _ in range(10):
        await asyncio.sleep(13.0)
        tasks = {name: sum(not task.done() for task in process.tasks) for name, process in world.processes.items()}
        without = world.sites_restored | (
            {"coordinator"} if world.sites_restored else set()
        )  # they dial again and again
        if all(tasks.get(name) == count for name, count in IDLE.items() if name not in without):
            return
    broken.append(f"at rest the processes have {tasks} tasks, not {IDLE}")


def check(
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
            if run not in cancelled and not world.may_lack(run):
                broken.append(f"{run} is not on record")
            continue
        good = GOOD if study == "sweeps" else GOOD - {"MAX_ROUNDS"}
        allowed = {"CANCELLED"} if run in cancelled else set()
        allowed |= {"SITE_FAULT"} if any(fault.kind == "noise" for fault in faults) else set()
        allowed |= {"REFUSED"} if run in world.refusing else set()
        # What a lie says may end a run in any way, but for a model that is wrong.
        allowed |= set(Outcome.__members__) if any(fault.kind == "lie" for fault in faults) else set()
        # The sites are ahead of the store, and say so; or its repeated questions use up what a site grants for the plan.
        allowed |= {"DAMAGED", "REFUSED"} if world.restored else set()
        allowed |= {"STALLED", "TOO_FEW_SITES"} if away else set()
        # A site whose ledger is older than its last countersigned head answers no more, and the operator cancels its runs.
        allowed |= {"STALLED", "TOO_FEW_SITES", "REFUSED", "CANCELLED"} if world.sites_restored else set()
        if summary.stop not in good | allowed:
            broken.append(f"{run} of {study} ended as {summary.stop}: {summary.reason}")
        if summary.stop in good:
            for site in SITES:
                result = world.result(site, plan)
                if result is None and site in world.sites_restored:
                    continue  # its older sums do not reach the end of the run
                if result is None:
                    broken.append(f"{site} has no result of {run}, which ended as {summary.stop}")
                elif study in twins and study != "scoring" and not alike(result, twins[study][site]):
                    broken.append(f"{site}'s result of {run} of {study} is another one than in a calm run")
    broken += world.network.twice
    broken += [f"the loop's handler heard {error}" for error in world.loop.errors]
    broken += [end for end in world.ends if end.startswith("DEFECT")]
    _check_ledgers(world, broken)


def _check_ledgers(world: World, broken: list[str]) -> None:
    """Every answer that left stands in the site's ledger, whose chain and signatures hold, and which has every head kept."""
    store = Summaries(world.folder / "runs.sqlite")
    try:
        kept_heads = [head_of(asdict(signed)) for signed in store.checkpoints()]
    finally:
        store.close()
    for site in (site for site in SITES if site not in world.sites_restored):
        try:
            path, record = world.folder / site / "ledger.jsonl", [head for head in kept_heads if head.site == site]
            audit(path, world.certificates.trusted(), site, record)
            entries = list(read_ledger(path))
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
