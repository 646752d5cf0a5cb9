r"""`snf-steps`: SNF with up to 1,000 steps, the paper's limit, instead of 25 (Grabocka et al.,
2014, section 5.2).

Protocol, search and draws are those of `benchmarks.papers.snf`, with level columns, on its four
sets of the fewest rows. Two draws, because 1,000 steps take about 30 times as long.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.baselines import PEERS
from benchmarks.papers.jobs import JSON, Job
from benchmarks.papers.pool import Pool
from benchmarks.papers.report import Cell, Report, ReportTable
from benchmarks.papers.snf import BEST, EPOCHS, READINGS, SHARES, drawn, errors_of, peer, searched
from benchmarks.papers.views import with_deviation

STEPS = 1000
DRAWS = 2
FEW = f"SNF, {EPOCHS} steps"
MANY = f"SNF, {STEPS:,} steps"
METHODS = (FEW, MANY, "kernel ridge")


@dataclass(frozen=True)
class SnfSteps:
    """See the module's docstring."""

    name: str = "snf-steps"
    title: str = "Supervised nonlinear factorisation with the paper's number of steps"
    source: str = "Grabocka, Bedalli, Schmidt-Thieme (ECML 2014), section 5.2"
    sets: tuple[str, ...] = ("bears_48", "pyrim", "autoPrice", "triazines")

    def jobs(self, pool: Pool, *, quick: bool) -> list[Job]:
        """One for each draw and set; quick: one set, one draw, four steps."""
        there = [name for name in self.sets if pool.has(name)]
        terms = {
            "reading": READINGS[0],
            "share": SHARES[0],
            "steps": [2, 4] if quick else [EPOCHS, STEPS],
        }
        return [
            Job(f"{name}/{draw}", {"set": name, "draw": draw, **terms})
            for draw in range(1 if quick else DRAWS)
            for name in (there[:1] if quick else there)
        ]

    def run(self, job: Job, pool: Pool) -> dict[str, JSON]:
        """The mean squared errors on the unlabelled rows."""
        X, y, n, order = drawn(pool, job.arguments)
        methods = {
            name: searched(X, y, steps)
            for name, steps in zip(METHODS, job.arguments["steps"], strict=False)
        }
        methods["kernel ridge"] = [peer(PEERS["kernel ridge"], X, y)]
        return {"errors": errors_of(methods, y, n, order)}

    def report(self, results: Mapping[str, dict[str, JSON]], *, quick: bool) -> Report:
        """The errors of both numbers of steps, set by set."""
        of_sets: dict[str, list[dict[str, float]]] = {}
        for key, result in results.items():
            of_sets.setdefault(key.split("/")[0], []).append(result["errors"])
        ratios = {
            name: np.mean([r[MANY] for r in runs]) / np.mean([r[FEW] for r in runs])
            for name, runs in of_sets.items()
        }
        rows: list[tuple[Cell, ...]] = [
            (
                name,
                BEST[name][0],
                *(with_deviation([run[m] for run in runs]) for m in METHODS),
                f"{ratios[name]:.2f}",
            )
            for name, runs in of_sets.items()
        ]
        draws = len(next(iter(of_sets.values())))
        return Report(
            (
                (
                    f"{STEPS:,} steps instead of {EPOCHS} change SNF's error by a factor of"
                    f" {min(ratios.values()):.2f} to {max(ratios.values()):.2f}; it falls on"
                    f" {sum(r < 1 for r in ratios.values())} of {len(ratios)} sets ({draws} draws)."
                ),
            ),
            (
                ReportTable(
                    f"Mean squared error, {100 * SHARES[0]:.0f} % labelled",
                    ("set", "best of six, paper", *METHODS, "ratio of SNF"),
                    tuple(rows),
                    f"Targets in [−1, 1]; mean ± standard deviation of {draws} draws.",
                ),
            ),
        )


EXPERIMENT = SnfSteps()
