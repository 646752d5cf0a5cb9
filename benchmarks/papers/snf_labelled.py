r"""`snf-labelled`: the six methods of `snf` with 5 to 20 % of the rows labelled (Grabocka et al.,
2014, section 5.4, figure 1).

Protocol and readings are those of `benchmarks.papers.snf`, with level columns. The figure's numbers
cannot be read; its text says that SNF wins at all shares on bodyfat and autoPrice, and up to 10 %
on housing. Two more columns show SNF's sensitivity: polynomials up to degree 4 instead of 3, and a
random start instead of the principal components.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.jobs import JSON, Job
from benchmarks.papers.pool import Pool
from benchmarks.papers.report import Cell, Report, ReportTable
from benchmarks.papers.snf import DRAWS, EPOCHS, READINGS, SIX, VARIANTS, Snf
from benchmarks.papers.views import with_deviation

PRINTED_WINS = {
    "bodyfat": (0.05, 0.1, 0.15, 0.2),
    "autoPrice": (0.05, 0.1, 0.15, 0.2),
    "housing": (0.05, 0.1),
}
SHARES = (0.05, 0.1, 0.15, 0.2)


@dataclass(frozen=True)
class SnfLabelled:
    """See the module's docstring."""

    name: str = "snf-labelled"
    title: str = "Supervised nonlinear factorisation with more labels"
    source: str = "Grabocka, Bedalli, Schmidt-Thieme (ECML 2014), section 5, figure 1"
    sets: tuple[str, ...] = tuple(PRINTED_WINS)

    def jobs(self, pool: Pool, *, quick: bool) -> list[Job]:
        """One for each set, share and draw; quick: one set, two shares, one draw, three steps."""
        there = [name for name in self.sets if pool.has(name)]
        draws, epochs, shares = (1, 3, SHARES[::3]) if quick else (DRAWS, EPOCHS, SHARES)
        return [
            Job(
                f"{name}/{share}/{draw}",
                {
                    "set": name,
                    "reading": READINGS[0],
                    "share": share,
                    "draw": draw,
                    "epochs": epochs,
                    "variants": True,
                },
            )
            for draw in range(draws)
            for name in (there[:1] if quick else there)
            for share in shares
        ]

    def run(self, job: Job, pool: Pool) -> dict[str, JSON]:
        """The mean squared error of every method on the unlabelled rows."""
        return Snf().run(job, pool)

    def report(self, results: Mapping[str, dict[str, JSON]], *, quick: bool) -> Report:
        """For each set a table of the errors, and the shares at which SNF has the least mean
        error.
        """
        errors: dict[str, dict[float, list[dict[str, float]]]] = {}
        for key, result in results.items():
            name, share, _ = key.split("/")
            errors.setdefault(name, {}).setdefault(float(share), []).append(result["errors"])
        findings = []
        tables = []
        columns = (*SIX, *VARIANTS, "kernel ridge")
        for name, of_set in errors.items():
            shares = sorted(of_set)
            mean = np.array([[np.mean([run[m] for run in of_set[s]]) for s in shares] for m in SIX])
            won = [
                s
                for s, winner in zip(shares, mean.argmin(axis=0), strict=True)
                if SIX[winner] == "SNF"
            ]
            findings.append(
                f"{name}: SNF has the least error at {_percent(won)} (paper:"
                f" {_percent(PRINTED_WINS[name])})."
            )
            rows: list[tuple[Cell, ...]] = [
                (_percent([s]), *(with_deviation([run[m] for run in of_set[s]]) for m in columns))
                for s in shares
            ]
            draws = len(of_set[shares[0]])
            caption = f"Targets in [−1, 1]; mean ± standard deviation of {draws} draws."
            tables.append(
                ReportTable(
                    f"Mean squared error, {name}", ("labelled", *columns), tuple(rows), caption
                )
            )
        return Report(tuple(findings), tuple(tables))


def _percent(shares: list[float] | tuple[float, ...]) -> str:
    return ", ".join(f"{100 * s:.0f} %" for s in shares) or "no share"


EXPERIMENT = SnfLabelled()
