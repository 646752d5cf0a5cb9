"""The report of a study: tables from its results (docs/research/benefit.md)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from benchmarks.benefit import yes_no
from benchmarks.benefit.findings import JUDGED, findings, limits, percent, share
from benchmarks.benefit.study import CHOSEN_ON, JUDGED_ON
from benchmarks.benefit.summary import (
    HARM,
    OWN,
    TOGETHER,
    SiteOutcome,
    figure,
    rank_correlation,
    standard_errors,
)
from benchmarks.benefit.trial import COVERAGES
from benchmarks.papers.jobs import JSON
from benchmarks.papers.report import Cell, Report, ReportTable

MAP = ("agreement-loo", "additive", "together-private", "together-own-pick", "together", "together-open", "pooled")
BY_SET = ("agreement-loo", "additive", "together-own-pick", "together-grouped-3", "together-open", "pooled")
_FORECAST_BINS = (-1.0, -0.3, -0.2, -0.1, -0.05, 0.0, 0.05, np.inf)
_R2_BINS = (-np.inf, 0.2, 0.5, 0.8, 1.0)


def report(found: Sequence[SiteOutcome]) -> Report:
    """Findings and tables."""
    # A study of other regimes alone answers for these.
    counted = [site for site in found if site.counted] or [site for site in found if site.judged and site.labels]
    groups = {
        JUDGED: [site for site in counted if site.set in JUDGED_ON],
        "chosen on": [site for site in counted if site.set in CHOSEN_ON],
        "others": [site for site in counted if site.set not in (*CHOSEN_ON, *JUDGED_ON)],
    }
    groups = {name: among for name, among in groups.items() if among}
    # Only sets on which no choice was made are a fair test. A study without such sets reports all of its sets.
    honest = [site for site in found if site.set not in CHOSEN_ON] or list(found)
    tables = [
        _methods("Each site's model, against its local model", OWN, groups),
        _methods("Scored together, against the site alone", TOGETHER, groups),
        _rules(groups),
        _regimes(honest),
        _sets(counted),
        *_calibration([site for site in honest if site.counted]),
        _intervals([site for site in honest if site.counted]),
        _losses([site for site in honest if site.judged]),
        yes_no.table(honest),
        _warnings(honest),
    ]
    return Report(
        (*findings(groups), *limits(honest), *yes_no.findings(honest)), tuple(table for table in tables if table.rows)
    )


def _row(among: Sequence[SiteOutcome], method: str) -> tuple[Cell, ...]:
    found = figure(among, method)
    if found is None:
        return ("", "", "")
    return percent(found.mean), percent(found.median), share(found.harmed, 1)


def _cells(among: Sequence[SiteOutcome], methods: tuple[str, ...]) -> tuple[Cell, ...]:
    figures = (figure(among, method) for method in methods)
    return tuple("" if f is None else f"{percent(f.mean)} ({share(f.harmed)})" for f in figures)


def _methods(title: str, methods: tuple[str, ...], groups: dict[str, list[SiteOutcome]]) -> ReportTable:
    header = ("method", *(f"{what}, {name}" for name in groups for what in ("mean", "median", "harmed")))
    rows = [
        (method, *(cell for among in groups.values() for cell in _row(among, method)))
        for method in methods
        if any(figure(among, method) is not None for among in groups.values())
    ]
    sets = "; ".join(f"{name}: {', '.join(dict.fromkeys(s.set for s in among))}" for name, among in groups.items())
    return ReportTable(
        title,
        header,
        tuple(rows),
        f"Root mean squared error on test rows; each set counted once. hgb and extra-trees: of the first draw only. {sets}.",
    )


def _rules(groups: dict[str, list[SiteOutcome]]) -> ReportTable:
    """Results with other limits in the two rules of the verdict."""
    rows: list[tuple[Cell, ...]] = []
    for what, method, otherwise in (("own", "additive-blended", "joined"), ("together", "together", "together")):
        for limit in (-1.0, -0.5, 0.0, 0.5, 1.0, 2.0, np.inf):

            def ruled(site: SiteOutcome, what: str = what, method: str = method, limit: float = limit) -> SiteOutcome:
                loss = standard_errors(site.record[what])
                used = loss is None or loss <= limit
                return replace(site, change={"rule": site.change[method] if used else 0.0})

            cells = [_row([ruled(site) for site in among], "rule") for among in groups.values()]
            name = "always" if limit == np.inf else f"unless the loss exceeds {limit:g} standard errors"
            rows.append((f"{otherwise}, {name}", *(cell for each in cells for cell in (each[0], each[2]))))
    header = ("rule, else alone", *(f"{what}, {name}" for name in groups for what in ("mean", "harmed")))
    note = (
        "The loss is the site's nested loss minus that of its model alone. The product uses limit 1 for joined models, 0 for "
        "scoring together."
    )
    return ReportTable("Other rules", header, tuple(rows), note)


def _places(found: Sequence[SiteOutcome]) -> dict[str, list[SiteOutcome]]:
    out: dict[str, list[SiteOutcome]] = {}
    for site in found:
        if site.judged:
            out.setdefault(site.place, []).append(site)
    return out


def _regimes(found: Sequence[SiteOutcome]) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for place, among in _places(found).items():
        rows.append((place, among[0].regime.about, len({site.set for site in among}), *_cells(among, MAP)))
    return ReportTable(
        "Map of regimes",
        ("regime", "federation", "sets", *MAP),
        tuple(rows),
        "Mean change against the site alone, and the share of sites worse by more than 2 %. Sites without labels are compared "
        "with the federation's mean label. The tables above cover only sites with labels, and not every regime of the map.",
    )


def _warnings(found: Sequence[SiteOutcome]) -> ReportTable:
    """How often a site is warned before it takes its model, by regime."""
    rows: list[tuple[Cell, ...]] = []
    for name in dict.fromkeys(site.regime.name for site in found if "warned" in site.record):
        there = [site for site in found if site.regime.name == name and site.labels]
        last = len(there[0].regime.labels) - 1
        parts = [site for site in there if site.site < last], [site for site in there if site.site == last]
        shares = (
            share(float(np.mean([site.record["warned"][what] for site in part]))) if part else ""
            for what in ("opposed", "unexplained")
            for part in parts
        )
        rows.append((name, there[0].regime.about, *shares))
    header = ("regime", "federation", "opposed: others", "last site", "unexplained: others", "last site ")
    note = "Shares of sites. Labels are shuffled or have the wrong sign at the last site alone."
    return ReportTable("Warnings about labels", header, tuple(rows), note)


def _sets(counted: Sequence[SiteOutcome]) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for name in dict.fromkeys(site.set for site in counted):
        among = [site for site in counted if site.set == name]
        group = "chosen on" if name in CHOSEN_ON else "judged on" if name in JUDGED_ON else ""
        rows.append((name, group, len(among), *_cells(among, BY_SET)))
    return ReportTable("Set by set", ("set", "", "sites", *BY_SET), tuple(rows))


# --- calibration of forecasts ----------------------------------------------------------------------------------------


def _pairs(found: Sequence[SiteOutcome], what: str, method: str) -> list[tuple[float, float]]:
    def value(record: JSON) -> float:
        return float(record["change"] if isinstance(record, dict) else record)

    return [
        (value(site.record[what]), site.change[method])
        for site in found
        if site.record.get(what) is not None and method in site.change
    ]


FORECASTS = (
    ("agreement", "nested folds of the agreement at the site's own λ", "agreement-loo"),
    ("own", "the site's own nested folds of its joined model", "additive-blended"),
    ("federation", "the federation's sum of these folds", "additive-blended"),
    ("r2", "r² of the others' score, before training (a large value should help)", "additive-blended"),
    ("together", "own folds of the joint score", "together"),
)


def correlations(found: Sequence[SiteOutcome]) -> dict[str, dict[str, float | None]]:
    """Rank correlation of each forecast with the result, by number of labels and over all; r² with the gain."""
    out: dict[str, dict[str, float | None]] = {}
    for what, _, method in FORECASTS:
        sign = -1.0 if what == "r2" else 1.0
        out[what] = {}
        for labels in (10, 20, 50, 100, 200, None):
            pairs = _pairs([s for s in found if labels is None or s.labels == labels], what, method)
            x, y = [sign * a for a, _ in pairs], [b for _, b in pairs]
            out[what]["all" if labels is None else str(labels)] = rank_correlation(x, y)
    return out


def bins(
    found: Sequence[SiteOutcome], what: str, method: str, edges: tuple[float, ...]
) -> list[tuple[float, float, int, float, float]]:
    """(from, to, sites, median change, share harmed) of the sites with a forecast between two edges."""
    pairs = _pairs(found, what, method)
    out = []
    for low, high in pairwise(edges):
        there = np.array([b for a, b in pairs if low <= a < high])
        if len(there):
            out.append((float(low), float(high), len(there), float(np.median(there)), float(np.mean(there > HARM))))
    return out


def _edges(what: str) -> tuple[float, ...]:
    return _R2_BINS if what == "r2" else _FORECAST_BINS


def _calibration(found: Sequence[SiteOutcome]) -> list[ReportTable]:
    by = correlations(found)
    header = ("forecast", "10 labels", "20", "50", "100", "200", "all")
    rows: list[tuple[Cell, ...]] = [
        (about, *("" if value is None else f"{value:.2f}" for value in by[what].values()))
        for what, about, _ in FORECASTS
    ]
    tables = [
        ReportTable(
            "Forecasts: rank correlation with the result",
            header,
            tuple(rows),
            "The first line forecasts the change by coRLSR, the next three the change by the joined model (blended), "
            "the last the change by scoring together. Each site is one point.",
        )
    ]
    for what, about, method in FORECASTS:
        name: Callable[[float], str] = (lambda x: f"{x:.1f}") if what == "r2" else (lambda x: f"{100 * x:+.0f} %")
        rows = [
            (_between(low, high, name), sites, percent(median), share(harmed))
            for low, high, sites, median, harmed in bins(found, what, method, _edges(what))
        ]
        title = f"Results by forecast: {about.partition(' (')[0]}"
        tables.append(ReportTable(title, ("forecast", "sites", "median change", "harmed"), tuple(rows)))
    return tables


def _between(low: float, high: float, name: Callable[[float], str]) -> str:
    if low in (-1.0, -np.inf):
        return f"below {name(high)}"
    return f"{name(low)} or more" if high == np.inf else f"{name(low)} to {name(high)}"


def coverage(found: Sequence[SiteOutcome], asked: float) -> tuple[int, float, float] | None:
    """(sites, mean coverage, share of sites more than 5 points below nominal); None without intervals."""
    covered = [site.record["coverage"][f"{asked:g}"][0] for site in found if f"{asked:g}" in site.record["coverage"]]
    if not covered:
        return None
    return len(covered), float(np.mean(covered)), float(np.mean(np.array(covered) < asked - 0.05))


def _intervals(found: Sequence[SiteOutcome]) -> ReportTable:
    rows = []
    for labels in (10, 20, 50, 100, 200):
        for asked in COVERAGES:
            got = coverage([site for site in found if site.labels == labels], asked)
            if got is not None:
                rows.append((labels, share(asked), got[0], f"{100 * got[1]:.1f} %", share(got[2])))
    return ReportTable(
        "Prediction intervals of joined models: share of test labels covered",
        ("labels", "level", "sites", "covered on average", "sites covered 5 points less"),
        tuple(rows),
        "Regime biased50, if simulated, is included: an interval calibrated on biased labels covers fewer unbiased ones.",
    )


# --- losses ---------------------------------------------------------------------------------------------------------


def _losses(found: Sequence[SiteOutcome]) -> ReportTable:
    """The largest losses by joined models, or by scoring together as forecast: sets within regimes."""
    rows = []
    for method in ("additive", "together-own-pick"):
        groups: dict[tuple[str, str], list[SiteOutcome]] = {}
        for site in found:
            groups.setdefault((site.place, site.set), []).append(site)
        bad = [(f.mean, place, name, f) for (place, name), among in groups.items() if (f := figure(among, method))]
        for mean, place, name, f in sorted(bad, key=lambda each: -each[0])[:8]:
            if mean > 0.0:
                rows.append((method, place, name, f.sites, percent(mean), share(f.harmed)))
    return ReportTable(
        "Largest losses",
        ("method", "regime", "set", "sites", "mean change", "harmed"),
        tuple(rows),
        "The eight worst of each method. The product recommends staying alone only where the site's own folds show the "
        "loss. With few labels they do not.",
    )
