"""A run as a line of `runs`, and a site's signed head as a line of `heads`."""

from collections.abc import Iterator, Sequence
from typing import Any

from coordinator.machine.records import HeadSigned
from coordinator.store.summaries import RunSummary
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan


def run_line(summary: RunSummary, waiting: str = "") -> str:
    """A line for a run that began, and one for the reason of its end; ``waiting`` is what it waits for."""
    stop = (summary.stop or "unfinished").lower()
    gap = "" if summary.gap is None else f"gap {summary.gap:.0e}"
    pruned = "" if summary.pruned is None else f"  history pruned on {summary.pruned[:10]}"
    line = f"{summary.run}  {summary.started}  {stop:<13} {summary.rounds:>6} rounds  {gap:<9}  {_of(summary.plan)}"
    reason = f"\n    {summary.reason}" if summary.reason and summary.stop != Outcome.CONVERGED.name else ""
    return line + pruned + f"  {waiting}" * bool(waiting) + reason


def pruned_line(summary: RunSummary) -> str:
    """The final figures of a run whose rounds were pruned."""
    known = {"residual ": summary.residual, "gap ": summary.gap}
    figures = "".join(f", {name}{value:.0e}" for name, value in known.items() if value is not None)
    return f"{summary.rounds} rounds{figures}; history pruned on {(summary.pruned or '')[:10]}"


def queued_line(plan: Plan, submitted: str, state: str = "queued") -> str:
    """A line for a run that has not begun."""
    return f"{plan.run}  {submitted}  {state:<13} {'':>13}  {'':<9} {_of(plan.to_dict())}"


def _of(plan: dict[str, Any]) -> str:
    """Study or federation, objective, couplings, sites."""
    objective = plan["objective"]
    couplings = objective.get("coupling")
    kind = objective["name"] if couplings is None else f"coupling {', '.join(f'{c:g}' for c in couplings)}"
    return f"{plan['study'] or plan['federation']} ({kind}; {len(plan['membership']['sites'])} sites)"


def checkpoint_line(signed: HeadSigned) -> str:
    """A line for where a site's ledger stood."""
    receipt, site = signed.receipt, signed.site
    head = receipt.head
    return (
        f"ledger of {site}: {head.lines} lines up to {head.last[:16]}…, signed by {site} {head.at}, "
        f"countersigned {receipt.at}, run {receipt.run}"
    )


def went_back(heads: Sequence[HeadSigned]) -> Iterator[str]:
    """A warning for each ledger that has fewer lines than at the end of an earlier run: ledgers only grow."""
    most: dict[str, tuple[int, str]] = {}
    for signed in heads:
        site, lines, run = signed.site, signed.receipt.head.lines, signed.receipt.run
        before, then = most.get(site, (0, ""))
        if lines < before:
            yield (
                f"{site}: its ledger had {before} lines at the end of run {then}, and {lines} at that of {run}: it was "
                "replaced or restored from a backup, and so was the site's memory of its answers. Ask its operator."
            )
        if lines > before:
            most[site] = (lines, run)
