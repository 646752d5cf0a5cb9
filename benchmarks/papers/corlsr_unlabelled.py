r"""`corlsr-unlabelled`: error and time against the number of unlabelled instances (Brefeld et al.,
2006, section 5.2, figure 2).

The paper's set, KDD Cup 98, is not available; these are the largest regression sets of the pool.
The protocol is the paper's: 100 labelled, 200 held out, m unlabelled; 25 runs, each with another
draw and a random split of the attributes into two views. Every method has the same number of
parameter values: λ for the two forms of coRLSR, a factor of the rule's ν for RLSR. The best value
is chosen on separate tuning draws.

Two readings, as in `corlsr-uci`: *literal*, attributes and targets unchanged; *standardised*,
attributes scaled to variance 1 and targets centred, both by the labelled rows (KDD Cup's attributes
were mostly 0 or 1 already). Predictions are inductive: the held-out rows are not among the
unlabelled. rmse is divided by the standard deviation of the set's target, so that sets can be
averaged. Seconds are the thread's own, of a fit at λ = 0.1.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.one_table import one_table
from benchmarks.papers.baselines import kernel_ridge
from benchmarks.papers.jobs import JSON, Job
from benchmarks.papers.methods import RLSR
from benchmarks.papers.pool import NumericDataSet, Pool
from benchmarks.papers.report import Cell, Report, ReportTable
from benchmarks.papers.views import paper_rules, random_views, standardised
from coreg_core.arrays import Arr
from coreg_core.estimators import CoRLSR

SETS = ("ailerons", "cal_housing", "elevators", "house_16H", "house_8L", "pol")
READINGS = ("literal", "standardised")
LABELLED = 100
HELD_OUT = 200
TUNING_DRAWS = 10
DRAWS = 25
COUPLINGS = (0.001, 0.01, 0.1, 1.0)
RIDGE_FACTORS = (0.01, 0.1, 1.0, 10.0)
SIZES = {
    "exact": (0, 50, 100, 200, 400, 800, 1600),
    "semi-parametric": (0, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800),
}
PRINTED = {10_000: 0.1312, 50_000: 0.1078, 90_000: 0.1253}
"""The paper's semi-parametric rmse on KDD Cup 98, from its text; figure 2 has no readable numbers.
"""


@dataclass(frozen=True)
class CorlsrUnlabelled:
    """See the module's docstring."""

    name: str = "corlsr-unlabelled"
    title: str = "coRLSR: error and time against the number of unlabelled instances"
    source: str = "Brefeld, Gärtner, Scheffer, Wrobel (ICML 2006), section 5.2, figure 2"
    sets: tuple[str, ...] = SETS

    def jobs(self, pool: Pool, *, quick: bool) -> list[Job]:
        """One for each set, reading and draw; quick: one set, two draws, m up to 200."""
        there = [name for name in self.sets if pool.has(name)]
        draws, largest = (2, 200) if quick else (TUNING_DRAWS + DRAWS, 10**9)
        return [
            Job(
                f"{name}/{reading}/{draw}",
                {"set": name, "reading": reading, "draw": draw, "largest": largest},
            )
            for draw in range(draws)
            for name in (there[:1] if quick else there)
            for reading in READINGS
        ]

    def run(self, job: Job, pool: Pool) -> dict[str, JSON]:
        """The held-out error of every method at every m and parameter value, and the seconds of a
        fit.
        """
        largest = job.arguments["largest"]
        sample = _Sample.of(
            pool.load(job.arguments["set"]), job.arguments["draw"], job.arguments["reading"]
        )
        out: dict[str, JSON] = {"rlsr": [], "exact": {}, "semi-parametric": {}, "seconds": {}}
        sigma, nu = paper_rules(sample.X, sample.Z)
        for factor in RIDGE_FACTORS:
            since = time.thread_time()
            alone = RLSR(preset="paper", bandwidth=sigma, ridge=factor * nu).fit(sample.X, sample.y)
            out["seconds"]["rlsr"] = time.thread_time() - since
            out["rlsr"].append(sample.error(alone.predict(sample.test)))
        out["kernel ridge"] = sample.error(
            kernel_ridge(sample.X, sample.y, seed=0).predict(sample.test)
        )
        X_views = sample.views(sample.X)
        test = np.hstack(sample.views(sample.test))
        rules = [paper_rules(X, Z) for X, Z in zip(X_views, sample.views(sample.Z), strict=True)]
        for form, sizes in SIZES.items():
            for m in sizes:
                if m > min(largest, len(sample.Z)):
                    continue
                # Without a shared row no coupling has an effect, and CoRLSR refuses the table: one
                # row and λ = 0 are the same.
                errors = []
                (views, table) = one_table(X_views, sample.y, sample.views(sample.Z[: max(m, 1)]))
                for coupling in COUPLINGS:
                    since = time.thread_time()
                    model = CoRLSR(
                        preset="paper", views=views, form=form, bandwidth=[b for b, _ in rules],
                        ridge=[r for _, r in rules],
                        coupling=coupling if m else 0.0, solver="closed-form",
                    ).fit(**table)  # fmt: skip
                    if coupling == 0.1:
                        out["seconds"][f"{form}/{m}"] = time.thread_time() - since
                    errors.append(sample.error(model.predict(test)))
                out[form][str(m)] = errors
        return out

    def report(self, results: Mapping[str, dict[str, JSON]], *, quick: bool) -> Report:
        """Means over the sets at the chosen parameters, seconds, and the exponents that fit
        them.
        """
        tuning = 1 if quick else TUNING_DRAWS
        findings: list[str] = []
        tables: list[ReportTable] = []
        for reading in READINGS:
            of_reading = {key: r for key, r in results.items() if key.split("/")[1] == reading}
            errors, median = _summary(of_reading, tuning)
            mean = {
                key: float(np.mean([e[key] for e in errors.values()]))
                for key in next(iter(errors.values()))
            }
            slopes = {form: _slope(median, form) for form in SIZES}
            draws = len(of_reading) // len(errors) - tuning
            findings += [f"{reading}: {finding}" for finding in _findings(mean, slopes, errors)]
            tables += [
                _mean_table(reading, mean, median, len(errors), draws),
                _sets_table(reading, errors),
            ]
        return Report(tuple(findings), tuple(tables))


def _summary(
    results: Mapping[str, dict[str, JSON]], tuning: int
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """For each set the error of "method/m" over the draws that count; and the median seconds of
    "method/m".
    """
    errors: dict[str, dict[str, float]] = {}
    seconds: dict[str, list[float]] = {}
    for name in dict.fromkeys(key.split("/")[0] for key in results):
        runs = [r for key, r in results.items() if key.split("/")[0] == name]
        errors[name] = {
            f"{method}/{m}": _chosen([_of(r, method, m) for r in runs], tuning)
            for method, m in _curves(runs[0])
        }
        errors[name]["kernel ridge/0"] = float(np.mean([r["kernel ridge"] for r in runs[tuning:]]))
        for r in runs:
            for key, value in r["seconds"].items():
                seconds.setdefault(key, []).append(value)
    return errors, {key: float(np.median(values)) for key, values in seconds.items()}


@dataclass(frozen=True, eq=False)
class _Sample:
    X: Arr
    y: Arr
    Z: Arr
    test: Arr
    y_test: Arr
    scale: float
    columns: tuple[Any, Any]

    @classmethod
    def of(cls, data: NumericDataSet, draw: int, reading: str) -> "_Sample":
        rng = np.random.default_rng([draw, *data.name.encode()])
        order = rng.permutation(len(data.y))
        labelled = order[:LABELLED]
        test = order[LABELLED : LABELLED + HELD_OUT]
        rest = order[LABELLED + HELD_OUT :]
        X = data.X
        y = data.y
        if reading == "standardised":
            X = standardised(X, labelled)
            y = y - y[labelled].mean()
        first, second = random_views(data, rng)
        rest = rest[: max(SIZES["semi-parametric"])]
        return cls(
            X[labelled],
            y[labelled],
            X[rest],
            X[test],
            y[test],
            float(data.y.std()),
            (first, second),
        )

    def views(self, table: Arr) -> list[Arr]:
        return [np.ascontiguousarray(table[:, columns]) for columns in self.columns]

    def error(self, predicted: Arr) -> float:
        return float(np.sqrt(np.mean((predicted - self.y_test) ** 2))) / self.scale


# --- the report -----------------------------------------------------------------------------------


def _curves(run: Mapping[str, JSON]) -> Iterator[tuple[str, str]]:
    yield "rlsr", "0"
    for form in SIZES:
        yield from ((form, m) for m in run[form])


def _of(run: Mapping[str, JSON], method: str, m: str) -> list[float]:
    values: list[float] = run["rlsr"] if method == "rlsr" else run[method][m]
    return values


def _chosen(errors: list[list[float]], tuning: int) -> float:
    """The error in the other draws of the parameter that was best in the tuning draws."""
    table = np.array(errors)
    return float(table[tuning:, int(table[:tuning].mean(axis=0).argmin())].mean())


def _slope(median: Mapping[str, float], form: str) -> float | None:
    """The exponent of m over the last three doublings of the measured sizes, of the seconds beyond
    those without Z.
    """
    sizes = [m for m in SIZES[form] if f"{form}/{m}" in median and m > 0][-4:]
    if len(sizes) < 2:
        return None
    beyond = np.array([median[f"{form}/{m}"] - median[f"{form}/0"] for m in sizes])
    if (np.diff(beyond, prepend=0.0) <= 0.0).any():
        return None  # other arithmetic at some of these sizes
    return float(np.polyfit(np.log(sizes), np.log(beyond), 1)[0])


def _findings(
    mean: Mapping[str, float],
    slopes: Mapping[str, float | None],
    errors: Mapping[str, Mapping[str, float]],
) -> Iterator[str]:
    for form, sizes in SIZES.items():
        there = [m for m in sizes if f"{form}/{m}" in mean]
        last = there[-1]
        fell = sum(of_set[f"{form}/{last}"] < of_set[f"{form}/0"] for of_set in errors.values())
        yield (
            f"{form}: mean error {mean[f'{form}/0']:.3f} without unlabelled instances (the views'"
            f" mean alone), {mean[f'{form}/{last}']:.3f} with {last}; it fell on {fell} of"
            f" {len(errors)} sets (paper: it falls with m)."
        )
        if (slope := slopes[form]) is not None:
            expected = "3" if form == "exact" else "1"
            grows = f"grow as m to the power {slope:.2f} over the largest sizes (paper: {expected})"
            yield f"{form}: the seconds beyond those at m = 0 {grows}."
    yield (
        f"RLSR on all attributes: {mean['rlsr/0']:.3f}; cross-validated kernel ridge on the same"
        f" 100 labels: {mean['kernel ridge/0']:.3f}."
    )


def _mean_table(
    reading: str, mean: Mapping[str, float], median: Mapping[str, float], n_sets: int, draws: int
) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for m in SIZES["semi-parametric"]:
        keys = [f"{form}/{m}" for form in SIZES]
        if any(key in mean for key in keys):
            rows.append((m, *(mean.get(key) for key in keys), *(median.get(key) for key in keys)))
    rows.append(("RLSR, all attributes", mean["rlsr/0"], None, median["rlsr"], None))
    rows.append(("kernel ridge, cross-validated", mean["kernel ridge/0"], None, None, None))
    return ReportTable(
        f"rmse over the target's deviation, means of {n_sets} sets, and seconds of a fit,"
        f" {reading}",
        ("m", "exact", "semi-parametric", "seconds, exact", "seconds, semi-parametric"),
        tuple(rows),
        f"{LABELLED} labelled, {HELD_OUT} held out, {draws} draws a set. The last two rows use no"
        " unlabelled instance. The paper's semi-parametric form on KDD Cup 98:"
        f" {', '.join(f'{e} with m = {m:,}' for m, e in PRINTED.items())}.",
    )


def _sets_table(reading: str, errors: Mapping[str, Mapping[str, float]]) -> ReportTable:
    first = next(iter(errors.values()))
    keys = [key for form in SIZES for key in [k for k in first if k.startswith(form + "/")]]
    chosen = [key for key in keys if int(key.split("/")[1]) in (0, 200, 1600, 12_800)] + [
        "rlsr/0",
        "kernel ridge/0",
    ]
    header = tuple(
        key.replace("/", ", m = ") if "/0" not in key or key[0] in "es" else key.split("/")[0]
        for key in chosen
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(e[key] for key in chosen)) for name, e in errors.items()
    )
    return ReportTable(f"The same, set by set, {reading}", ("set", *header), rows)


EXPERIMENT = CorlsrUnlabelled()
