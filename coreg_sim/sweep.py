"""The errors of a federation over couplings, splits, numbers of sites and seeds, to plan a federation.

A job is one draw; its couplings are the columns of one run. The report compares each site's error on held-out rows with that of
its own model, and with the mean of the sites' *uncoupled* predictions: that column shows the gain of averaging without
coupling. Intervals are Student's over the draws.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from coreg_core.agreement.objective import ScheduleName
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Agreement, Form, Iteration
from coreg_sim.federation.problems import Problem, TableSource, from_table, generated
from coreg_sim.federation.simulate import held_out_errors, plan_for, simulate
from coreg_sim.study.jobs import JSON, Job
from coreg_sim.study.report import Cell, Report, ReportTable
from coreg_wire.terminal.svg import Plot, Series

HARM = 1.02  # a site is harmed where its error grows by more than 2 %
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Split:
    """The number of labelled rows at each site, and of shared rows (None: the default of `problems`)."""

    labelled: int
    unlabelled: int | None

    def __str__(self) -> str:
        return f"{self.labelled}:{'' if self.unlabelled is None else self.unlabelled}"


@dataclass(frozen=True)
class Sweep:
    """All settings. Data are generated, or a table's columns are partitioned in turn or by a views.toml."""

    couplings: tuple[float, ...]
    sites: tuple[int, ...]
    splits: tuple[Split, ...]
    seeds: int
    form: Form
    schedule: ScheduleName
    tolerance: float
    prediction_tolerance: float
    max_rounds: int
    features: int
    table: TableSource | None = None
    views: str | None = None
    digest: str = ""  # of the files, so that another table gives other jobs

    def jobs(self) -> list[Job]:
        """One for each draw; its arguments determine the result."""
        fixed = {k: v for k, v in asdict(self).items() if k not in ("sites", "splits", "seeds")}
        return [
            Job(f"{sites}/{split}/{seed}", {**fixed, "sites": sites, **asdict(split), "seed": seed})
            for sites in self.sites
            for split in self.splits
            for seed in range(self.seeds)
        ]

    def do(self, job: Job) -> dict[str, JSON]:
        """One draw: every coupling at once."""
        asked = job.arguments
        problem = self._problem(asked["sites"], asked["labelled"], asked["unlabelled"], asked["seed"])
        objective = Agreement(form=self.form, coupling=self.couplings, seed=asked["seed"])
        iteration = Iteration(self.schedule, self.tolerance, self.prediction_tolerance, self.max_rounds)
        run = simulate(problem, plan_for(problem, objective, iteration))
        alone, mean_alone = held_out_errors(problem, run.alone)
        columns = []
        for j, coupling in enumerate(self.couplings):
            errors, mean = held_out_errors(problem, [r.solutions[j] for r in run.results])
            columns.append({"coupling": coupling, "rmse_sites": errors, "rmse_mean": mean})
        return {
            "stop": run.outcome.name,
            "rounds": run.rounds,
            "numbers_sent": run.numbers_sent,
            "certified_gap": run.certified_gap,
            "unlabelled": problem.n_unlabelled,
            "held_out": len(problem.held_out_y),
            "rmse_sites_alone": alone,
            "rmse_mean_alone": mean_alone,
            "columns": columns,
        }

    def _problem(self, sites: int, labelled: int, unlabelled: int | None, seed: int) -> Problem:
        if self.views is not None:
            from coreg_sim.federation.views_file import partitioned, read_views  # polars takes a second to import

            return partitioned(read_views(Path(self.views)), labelled, unlabelled, seed)
        if self.table is None:
            return generated(sites, labelled, unlabelled or 500, self.features, seed)
        return from_table(self.table, sites, labelled, unlabelled, seed)

    # --- the report -------------------------------------------------------------------------------------------------

    def report(self, results: Mapping[str, dict[str, JSON]]) -> Report:
        """A table with a row for each setting, a plot with a line for each of sites and split, and findings."""
        rows: list[tuple[Cell, ...]] = []
        lines: list[Series] = []
        best: tuple[float, str] | None = None
        tried = len(self.sites) * len(self.splits) * max(1, sum(coupling > 0 for coupling in self.couplings))
        for sites, split, draws in self._settings(results):
            gains = [_gains(draws, j) for j in range(len(self.couplings))]
            for coupling, gain in zip(self.couplings, gains, strict=True):
                mean, half = interval(gain)
                rows.append((sites, str(split), coupling, _signed(mean), _plus_minus(half), *_beside(draws, coupling)))
                _, wide = interval(gain, 1.0 - (1.0 - CONFIDENCE) / tried)  # Bonferroni: the best of many settings
                if coupling > 0 and wide is not None and mean + wide < 0 and (best is None or mean < best[0]):
                    best = mean, f"{sites} sites, {split}, λ = {coupling:g}: {_signed(mean)} {_plus_minus(wide)}"
            means, halves = zip(*(interval(gain) for gain in gains), strict=True)
            x = tuple(coupling for coupling in self.couplings if coupling > 0)
            kept = [i for i, coupling in enumerate(self.couplings) if coupling > 0]
            spread = tuple(100 * (halves[i] or 0.0) for i in kept)
            y = tuple(100 * means[i] for i in kept)
            lines.append(Series(f"{sites} sites, {split}", x, y, "line", spread))
        unfinished = sum(not Outcome[r["stop"]].good for r in results.values())
        findings = [
            "One draw has no interval, so nothing is told from chance: use --seeds 10."
            if self.seeds == 1
            else f"The best of {tried} settings whose sites are better than alone beyond chance (the interval allows for "
            f"{tried} tries): {best[1]}."
            if best
            else f"None of {tried} settings makes the sites better than alone beyond chance (the interval allows for {tried} "
            "tries).",
            f"{len(results) - unfinished} of {len(results)} runs converged; "
            f"{max(r['rounds'] for r in results.values())} rounds at most.",
        ]
        header = ("sites", "split", "λ", "change", f"± ({CONFIDENCE:.0%})", "harmed", "mean of sites", "uncoupled mean")
        note = (
            "change: of a site's error on held-out rows against its own model's, mean over sites and draws; harmed: sites whose "
            "error grows by more than 2 %; mean of sites: the error of the mean of all predictions against the sites' own "
            "models, with this coupling and (uncoupled mean) with none."
        )
        plot = Plot("sweep", "Change of the sites' error", "λ", "change against alone, %", tuple(lines), log_x=True)
        return Report(tuple(findings), (ReportTable("Over all draws", header, tuple(rows), note),), (plot,))

    def _settings(self, results: Mapping[str, dict[str, JSON]]) -> Iterator[tuple[int, Split, list[dict[str, JSON]]]]:
        for sites in self.sites:
            for split in self.splits:
                draws = [results[f"{sites}/{split}/{seed}"] for seed in range(self.seeds)]
                yield len(draws[0]["rmse_sites_alone"]), split, draws


def _gains(draws: list[dict[str, Any]], column: int) -> Arr:
    """The mean change over the sites for each draw. Draws are independent; the sites of a draw are not."""
    return np.array(
        [np.mean(np.array(d["columns"][column]["rmse_sites"]) / np.array(d["rmse_sites_alone"])) - 1.0 for d in draws]
    )


def _beside(draws: list[dict[str, Any]], coupling: float) -> tuple[str, str, str]:
    column = next(j for j, c in enumerate(draws[0]["columns"]) if c["coupling"] == coupling)
    sites = np.concatenate([np.array(d["columns"][column]["rmse_sites"]) / d["rmse_sites_alone"] for d in draws])
    alone = np.array([np.mean(d["rmse_sites_alone"]) for d in draws])
    together = np.mean([d["columns"][column]["rmse_mean"] for d in draws] / alone) - 1.0
    uncoupled = np.mean([d["rmse_mean_alone"] for d in draws] / alone) - 1.0
    return f"{np.mean(sites > HARM):.0%}", _signed(float(together)), _signed(float(uncoupled))


def interval(draws: Arr, confidence: float = CONFIDENCE) -> tuple[float, float | None]:
    """Mean, and half the width of Student's interval; None for a single draw."""
    n = len(draws)
    if n < 2:
        return float(draws.mean()), None
    half = student.ppf(0.5 + confidence / 2, n - 1) * draws.std(ddof=1) / np.sqrt(n)
    return float(draws.mean()), float(half)


def _signed(change: float) -> str:
    return f"{change * 100:+.1f} %"


def _plus_minus(half: float | None) -> str:
    return "" if half is None else f"± {half * 100:.1f}"
