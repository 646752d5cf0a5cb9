"""What the demonstration prints: the commands, convergence, errors, and what left each site."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coreg_wire.terminal.command_line import human_bytes
from examples.demo import draws
from examples.demo.draws import Means
from examples.demo.tables import COUPLINGS
from site_agent.ledger import read_ledger

SOLVERS = {"algorithm-1": "Algorithm 1", "conjugate-gradients": "conjugate gradients"}
COLUMNS = {
    "ridge": "kernel ridge", "corlsr": "coRLSR", "local": "local model",
    "joined": "joined model", "score": "score",
}  # fmt: skip
# Each method's baseline: the same learner on the site's own labels alone.
AGAINST = {"corlsr": "ridge", "joined": "local", "score": "local"}


def hospitals(means: Mapping[str, Means]) -> None:
    """coRLSR where its assumption holds."""
    print(
        "Two hospitals measure the same condition, each by its own columns. Each has"
        f" {draws.HOSPITAL_LABELS} labels.\nThis is the case for coRLSR. Made-up data, in memory:"
        f" root mean square errors, means of {draws.DRAWS} draws."
    )
    print(f"{'':<14}{'kernel ridge':>16}{'coRLSR':>18}{'better in':>20}")
    for number, site in enumerate(means.values(), 1):
        errors = {"ridge": site.ridge, "corlsr": site.corlsr}
        cells = (cell(errors, "ridge", 3), cell(errors, "corlsr", 3))
        better = f"{site.better} of {draws.DRAWS} draws"
        print(f"{f'hospital {number}':<14}{cells[0]:>16}{cells[1]:>18}{better:>20}")


def commands(sites: Sequence[str]) -> None:
    """The patients' federation, and the commands of its operators."""
    named = " ".join(f"--site {site}" for site in sites)
    print(
        "\nA clinic and two laboratories know 362 patients. Each has other columns of them, and the"
        " labels of 60.\nAll commands run as processes on this machine. At each site: join, then"
        " train. The sites align their ids."
    )
    print(f"$ coreg-coordinator init fed {named}")
    print("$ coreg-coordinator run fed")
    print("$ coreg-agent join < invitation; coreg-agent --data local.csv")


def gaps(found: Mapping[str, Any]) -> dict[int, float]:
    """The gap after each round, the largest of all λ."""
    return {r["round"]: max(r["gap"]) for r in found["rounds"] if r["gap"] and max(r["gap"]) >= 0}


def convergence(runs: Mapping[str, dict[str, Any]], off: Mapping[str, float]) -> None:
    """Both solvers: upper bounds by round, traffic, and distance from the closed form."""
    couplings = ", ".join(f"{c:g}" for c in COUPLINGS)
    print(f"\ncoRLSR (Brefeld et al., ICML 2006), λ = {couplings}: Q − Q* is at most")
    _row("sweep or round", SOLVERS.values())
    by_round = [gaps(runs[study]) for study in SOLVERS]
    last = max(max(each, default=0) for each in by_round)
    for at in sorted({1, 2, 5, 10, last}):
        cells = [f"{each[at]:.0e}" if at in each else "" for each in by_round]
        if any(cells):
            _row(str(at), cells)
    _row("end", [runs[study]["stop"].lower() for study in SOLVERS])
    _row("sent a step, all sites", [_sent(runs[study]) for study in SOLVERS])
    _row("distance from closed form", [f"{off[study]:.0e}" for study in SOLVERS])
    print(
        "Distance: the largest difference of a prediction from the centralised closed form, in"
        " standard deviations\nof the labels."
    )


def _row(name: str, cells: Iterable[str]) -> None:
    print(f"{name:<26}" + "".join(f"{text:>22}" for text in cells))


def _sent(run: Mapping[str, Any]) -> str:
    return human_bytes(
        float(np.median([r["bytes_sent"] + r["bytes_received"] for r in run["rounds"]]))
    )


def errors(
    this_draw: Mapping[str, Mapping[str, float]],
    means: Mapping[str, Mapping[str, float]],
    pooled: float,
) -> None:
    """Each site's errors: of this draw, and below it the means of other draws."""
    recorded, _ = draws.recorded()
    print(
        "\nThe patients' columns are divided among the sites: the case for the additive method."
        "\nRoot mean square errors on 80 held-out patients. In brackets: change against the same"
        " learner alone (coRLSR:\nkernel ridge; joined model and score: local model)."
    )
    print(f"{'':<24}" + "".join(f"{name:>16}" for name in COLUMNS.values()))
    for site, found in this_draw.items():
        for name, row in ((f"{site}, this draw", found), ("  means of draws", means[site])):
            print(f"{name:<24}" + "".join(f"{cell(row, key):>16}" for key in COLUMNS))
    print(
        f"This draw was run by processes. Means: {draws.DRAWS} draws of kernel ridge and coRLSR, in"
        f" memory; {recorded} of the others, as in README.md.\nEach site keeps the λ that its own"
        f" labels choose. All rows and columns in one place, this draw: {pooled:.1f}"
    )


def advice(advised: Mapping[str, str]) -> None:
    """The method that each site's own report recommends."""
    print(f"The sites' own reports advise: {', '.join(f'{s}: {a}' for s, a in advised.items())}")


def ledgers(work: Path, sites: Sequence[str]) -> None:
    """How many messages left each site."""
    print(
        "\nWhat left each site, by its ledger. No row and no id left it; from the sums the members"
    )
    print("learn a part of each label and row (docs/concepts/privacy.md).")
    for site in sites:
        ledger = read_ledger(work / site / "identity" / "ledger.jsonl")
        sent = [entry for entry in ledger if entry["kind"] != "Countersigned"]
        sealed = sum(entry.get("sent") == "sealed" for entry in sent)
        print(f"  {site:<12}  {len(sent)} messages, {sealed} of them with encrypted numbers")


def cell(found: Mapping[str, float], key: str, digits: int = 1) -> str:
    """An error, and its change against the same learner alone."""
    error = f"{found[key]:.{digits}f}"
    if key not in AGAINST:
        return error
    return f"{error} ({100 * (found[key] / found[AGAINST[key]] - 1):+.1f} %)"
