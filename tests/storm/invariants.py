"""What must hold at the end of every storm."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from coordinator.store.runs import RunStore, RunSummary
from coreg_core.errors import CoregError
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan, aligns_for
from site_agent.identity.run_keys import AttemptSeal
from site_agent.ledger import read_ledger
from site_agent.ledger.audit import audit, head_of
from site_agent.machine.admission import MAX_ALIGNMENTS
from tests.storm.story import EVERYWHERE, GOOD, IDLE, LONG, Fault
from tests.storm.world import SITES, World, alike


@dataclass
class Told:
    """How a storm ended: broken invariants, a digest of all messages and times, the virtual
    seconds, answers and outcomes.
    """

    broken: list[str] = field(default_factory=list)
    trace: str = ""
    seconds: float = 0.0
    answers: int = 0
    outcomes: dict[str, str] = field(
        default_factory=dict
    )  # of each run: its study, and its outcome


def is_over(world: World, plans: dict[str, Plan]) -> bool:
    """Whether every run has ended, and every site has the models of those that have some."""
    found = world.runs()
    if world.unsubmitted or any(run not in found and not world.may_lack(run) for run in plans):
        return False
    known = [(plan, found[run]) for run, plan in plans.items() if run in found]
    good = [plan for plan, summary in known if summary.stop in GOOD]
    return all(summary.ended is not None for _, summary in known) and all(
        world.has_result(site, plan) for plan in good for site in SITES
    )


async def check_tasks(world: World, broken: list[str]) -> None:
    """Nothing is left of faults and runs: within 130 s each process has the tasks of a process
    without a run.
    """
    tasks: dict[str, int] = {}
    for _ in range(10):
        await asyncio.sleep(13.0)
        tasks = {
            name: sum(not task.done() for task in process.tasks)
            for name, process in world.processes.items()
        }
        without = world.sites_restored | (
            {"coordinator"} if world.sites_restored else set()
        )  # they dial again and again
        if all(tasks.get(name) == count for name, count in IDLE.items() if name not in without):
            await asyncio.sleep(5.0)  # a session that opened at this moment says what it has to say
            return
    broken.append(f"at rest the processes have {tasks} tasks, not {IDLE}")


def check(
    world: World,
    runs: dict[str, tuple[str, Plan]],
    faults: tuple[Fault, ...],
    told: Told,
    twins: Mapping[str, Any],
) -> None:
    broken = told.broken
    found = world.runs()
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
        allowed |= (
            set(Outcome.__members__) if any(fault.kind == "lie" for fault in faults) else set()
        )
        # The questions of an older store use up what a site grants for the plan.
        allowed |= {"REFUSED"} if world.restored else set()
        allowed |= {"STALLED", "TOO_FEW_SITES"} if away else set()
        allowed |= {"STALLED"} if interrupted_too_often(world, plan, summary) else set()
        allowed |= {"REFUSED"} if aligned_too_often(world, plan, summary) else set()
        # A site whose ledger is older than its last countersigned head answers no more, and the
        # operator cancels its runs.
        allowed |= (
            {"STALLED", "TOO_FEW_SITES", "REFUSED", "CANCELLED"} if world.sites_restored else set()
        )
        if summary.stop not in good | allowed:
            broken.append(f"{run} of {study} ended as {summary.stop}: {summary.reason}")
        told.outcomes[run] = f"{study} {summary.stop}"
        # A site stores its result before its last answer, so it can have one of a run that ended
        # without.
        results = {site: world.result(site, plan) for site in SITES}
        if summary.stop in good:
            broken += [
                f"{at} has no result of {run}: {summary.stop}"
                for at, each in results.items()
                if each is None
            ]
            if study != "scoring" and len({world.opened(site, plan) for site in SITES}) > 1:
                broken.append(f"the sites have results of {run} from different sums")
        for site, result in results.items():
            if (
                result is not None
                and study in twins
                and study != "scoring"
                and not alike(result, twins[study][site])
            ):
                broken.append(
                    f"{site}'s result of {run} of {study} is another one than in a calm run"
                )
    # An older store begins a run again that the sites have forgotten: with the same numbers, and
    # other keys.
    broken += world.network.twice if not world.restored else []
    broken += [f"the loop's handler heard {error}" for error in world.loop.errors]
    broken += [end for end in world.ends if end.startswith("DEFECT")]
    broken += [
        f"{run} has not ended"
        for run, summary in found.items()
        if aligns_for(run) and summary.ended is None
    ]
    still = {
        (site, run)
        for site, daemon in world.agents.items()
        for run in daemon.agent.runs
        if run in found
    }
    if still and not world.sites_restored:
        broken.append(f"agents wait for the end of runs that are over: {sorted(still)}")
    _check_ledgers(world, broken)


def interrupted_too_often(world: World, plan: Plan, summary: RunSummary) -> bool:
    """Whether the run ended because of the limit of attempts, and so many processes were started
    again.
    """
    again = world.starts - len(EVERYWHERE)
    each = (plan.objective, plan.align or plan.objective)
    return any(
        f"{it.attempts} attempts were interrupted; " in str(summary.reason) and again >= it.attempts
        for it in each
    )


def aligned_too_often(world: World, plan: Plan, summary: RunSummary) -> bool:
    """Whether the coordinator was started again in so many alignments of the run's ids."""
    again = world.starts - len(EVERYWHERE)
    refused = "happens once." in str(summary.reason)
    return plan.align is not None and refused and again >= MAX_ALIGNMENTS


def _check_ledgers(world: World, broken: list[str]) -> None:
    """Every answer that left stands in the site's ledger, whose chain and signatures hold, and
    which has every head kept.
    """
    store = RunStore(world.folder / "runs.sqlite")
    try:
        kept_heads = [
            head_of(asdict(signed)) for run in store.runs() for signed in store.checkpoints(run.run)
        ]
    finally:
        store.close()
    for site in (site for site in SITES if site not in world.sites_restored):
        try:
            path = world.folder / site / "ledger.jsonl"
            record = [head for head in kept_heads if head.site == site]
            audit(path, world.certificates.trusted(), site, record)
            entries = list(read_ledger(path))
        except CoregError as error:
            broken.append(f"{site}'s ledger: {error}")
            continue
        kept = {
            (e["run"], e["attempt"], e["step"], e["sha256"])
            for e in entries
            if e["kind"] == "Answer" and "sha256" in e
        }
        sets = {
            tuple(e["participants"])
            for e in entries
            if e.get("participants") and not e["may_change"]
        }
        if len(sets) > 1:
            broken.append(
                f"{site}'s answers were summed in different sets of sites: {sorted(sets)}"
            )
        left = {
            (run, attempt, step, sha)
            for (name, run, attempt, step), sha in world.network.answers.items()
            if name == site
        }
        if missing := left - kept:
            broken.append(f"{len(missing)} answers of {site} left and are not in its ledger")


@contextmanager
def keystreams_watched(broken: list[str]) -> Iterator[None]:
    """Add a sentence to ``broken`` for each keystream of a site, an attempt and a step that was
    used for another plaintext.
    """
    real = AttemptSeal.mask, AttemptSeal.close, AttemptSeal.blind
    seen = dict[tuple[Any, ...], bytes]()

    def see(seal: AttemptSeal, plain: bytes, *use: Any) -> None:
        if seen.setdefault((seal.site, seal.key, *use), plain) != plain:
            broken.append(f"{seal.site} sealed two plaintexts with one keystream ({use[0]})")

    def mask(self: AttemptSeal, context: bytes, words: Any, answering: tuple[str, ...]) -> Any:
        see(self, words.tobytes(), "mask", context)
        return real[0](self, context, words, answering)

    def close(self: AttemptSeal, context: bytes, text: bytes, receiver: str = "") -> bytes:
        see(self, text, "text", context, receiver)
        return real[1](self, context, text, receiver)

    def blind(
        self: AttemptSeal, context: bytes, words: Any, senders: tuple[str, ...], receiver: str
    ) -> Any:
        see(self, words.tobytes(), "blind", context, receiver)
        return real[2](self, context, words, senders, receiver)

    AttemptSeal.mask = mask
    AttemptSeal.close = close
    AttemptSeal.blind = blind  # type: ignore[method-assign]
    try:
        yield
    finally:
        AttemptSeal.mask, AttemptSeal.close, AttemptSeal.blind = real  # type: ignore[method-assign]
