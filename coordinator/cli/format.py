"""A run as a line of `runs`, and a site's signed head as a line of `heads`."""

from collections.abc import Iterator, Sequence
from typing import Any

from coordinator.store.runs import RunSummary
from coreg_core.protocol.plan import Plan


def run_line(summary: RunSummary) -> str:
    """A line for a run that began."""
    stop = (summary.stop or "unfinished").lower()
    gap = "-" if summary.gap is None else f"{summary.gap:.1e}"
    return f"{summary.run}  {summary.started}  {stop:<13} {summary.rounds:>6} rounds  gap {gap:<8} {_of(summary.plan)}"


def queued_line(plan: Plan, submitted: str) -> str:
    """A line for a run that waits."""
    return f"{plan.run}  {submitted}  {'queued':<13} {'':>13}  {'':<12} {_of(plan.to_dict())}"


def _of(plan: dict[str, Any]) -> str:
    """Study or federation, objective, couplings, sites; a plan of release 0.1 has less to say."""
    words = [plan.get("study") or plan["federation"]]
    objective = plan.get("objective")
    if isinstance(objective, dict):
        couplings = objective.get("coupling")
        said = "additive" if couplings is None else f"coupling {', '.join(f'{c:g}' for c in couplings)}"
        words.append(f"({said}; {len(plan['membership']['sites'])} sites)")
    return " ".join(words)


def head_line(told: dict[str, Any]) -> str:
    """A line for where a site's ledger stood, as `RunStore.heads` tells it."""
    receipt, site = told["receipt"], told["site"]
    head = receipt["head"]
    return (
        f"ledger of {site}: {head['lines']} lines up to {head['last'][:16]}…, signed by {site} {head['at']}, "
        f"countersigned {receipt['at']}, run {receipt['run']}"
    )


def went_back(heads: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A sentence for each ledger that had fewer lines than at the end of an earlier run: ledgers only grow."""
    most: dict[str, tuple[int, str]] = {}
    for told in heads:
        site, lines, run = told["site"], told["receipt"]["head"]["lines"], told["receipt"]["run"]
        before, then = most.get(site, (0, ""))
        if lines < before:
            yield (
                f"{site}: its ledger had {before} lines at the end of run {then}, and {lines} at that of {run}: it was "
                "replaced, or restored from a backup, and what that site remembers with it. Ask its operator"
            )
        if lines > before:
            most[site] = (lines, run)
