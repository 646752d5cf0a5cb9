"""The tables of the study: means over sets of the mean over sites and draws, and the share of sites
more than 2 % worse.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.benefit.partition import REGIMES

HARM = 0.02
COLUMNS = (
    "score", "joined", "default score", "default joined", "score, one missing",
    "default score, one missing",
    "private score", "private joined", "pooled",
)  # fmt: skip
RIVALS = (
    "six",
    "cooperative",
    "assisted",
    "one holder",
    "pooled",
    "pooled trees",
    "pooled boosting",
)
_STATED = ("score", "joined", "default score", "default joined", "six")
Records = Mapping[str, Sequence[Mapping[str, Any]]]  # of one regime: data set → sites


def table(results: Mapping[str, Records], columns: Sequence[str] = COLUMNS) -> list[list[str]]:
    """A row for each regime: the change in per cent, and in brackets the share of harmed sites."""
    return [
        [name, str(len(of)), *(cell(of, column) for column in columns)]
        for name, of in results.items()
    ]


def cell(of: Records, column: str) -> str:
    """One figure, or "" where there is none."""
    found = figure(of, lambda site: site["change"].get(column))
    if found is None:
        return ""
    harmed = figure(
        of, lambda site: None if (x := site["change"].get(column)) is None else float(x > HARM)
    )
    return f"{100 * found:+.1f} ({100 * (harmed or 0.0):.0f})"


def figure(of: Records, value: Any) -> float | None:
    """The mean over sets of the mean over honest sites with labels."""
    means = by_set(of, value)
    return float(np.mean(means)) if means else None


def by_set(of: Records, value: Any) -> list[float]:
    """Of each set the mean over honest sites with labels."""
    means = []
    for sites in of.values():
        found = [
            x
            for site in sites
            if site["honest"] and site["labels"] and (x := value(site)) is not None
        ]
        if found:
            means.append(float(np.mean(found)))
    return means


def errors_over_sets(results: Mapping[str, Records], columns: Sequence[str]) -> list[list[str]]:
    """The standard error of each mean over sets, in points: how much other tables would
    change it.
    """
    rows = []
    for name, of in results.items():
        means = [by_set(of, lambda site, c=column: site["change"].get(c)) for column in columns]
        rows.append([
            name, *(f"{100 * float(np.std(m, ddof=1)) / len(m) ** 0.5:.1f}" if len(m) > 1 else "" for m in means)
        ])  # fmt: skip
    return rows


def verdicts(results: Mapping[str, Records]) -> list[list[str]]:
    """Forecast and true change of score and joined model, their correlations over sites, intervals,
    recommendations.
    """
    rows = []
    for name, of in results.items():
        sites = [
            site
            for each in of.values()
            for site in each
            if site["honest"] and "score" in site["forecast"]
        ]
        if len(sites) < 2:
            continue
        pairs = [
            [np.array([site[key][method] for site in sites]) for key in ("forecast", "change")]
            for method in ("score", "joined")
        ]
        inside = [
            figure(of, lambda site, m=method: site["inside"][m]) for method in ("score", "joined")
        ]
        local = np.mean([site["recommended"] == "local" for site in sites])
        rows.append([
            name,
            *(f"{100 * a.mean():+.1f} / {100 * b.mean():+.1f}, {np.corrcoef(a, b)[0, 1]:.2f}" for a, b in pairs),
            *(f"{100 * (x or 0.0):.0f}" for x in inside), f"{100 * local:.0f} %",
        ])  # fmt: skip
    return rows


def yes_no(results: Mapping[str, Records]) -> list[list[str]]:
    """AUC, log loss and calibration error of local, joined and score."""
    rows = []
    for name, of in results.items():
        if not any("yes_no" in site for each in of.values() for site in each):
            continue
        cells = []
        for method in ("local", "joined", "score"):
            found = [
                figure(of, lambda site, m=method, k=j: site.get("yes_no", {}).get(m, [None] * 3)[k])
                for j in range(3)
            ]
            cells.append(", ".join("–" if x is None else f"{x:.3f}" for x in found))
        rows.append([name, *cells])
    return rows


def tables(
    results: Mapping[str, Records], chosen_on: Sequence[str]
) -> dict[str, tuple[Sequence[str], list[list[str]]]]:
    """Each table's heading and rows.

    The sets that defaults were chosen on have their own; "regime" names the table.
    """
    chosen = {
        name: {key: each for key, each in of.items() if key in chosen_on}
        for name, of in results.items()
    }
    judged = {
        name: {key: each for key, each in of.items() if key not in chosen_on}
        for name, of in results.items()
    }
    parts = {name: of for name, of in results.items() if REGIMES[name].grouped}
    results = {name: of for name, of in judged.items() if of and name not in parts}
    chosen = {name: of for name, of in chosen.items() if of and name not in parts}
    both = ("score", "joined", *RIVALS)
    return {
        "changes": (("regime", "sets", *COLUMNS), table(results)),
        "errors": (("standard errors over sets", *_STATED), errors_over_sets(results, _STATED)),
        "rivals": (("strong baselines", "sets", *both), table(results, both)),
        "parts": (("columns that belong together", "sets", *both), table(parts, both)),
        "chosen": (
            ("sets that defaults were chosen on", "sets", *COLUMNS, *RIVALS),
            table(chosen, COLUMNS + RIVALS),
        ),
        "verdicts": (
            (
                "regime",
                "score: forecast / true, correlation",
                "joined: the same",
                "90 %: score",
                "90 %: joined",
                "local chosen",
            ),
            verdicts(results),
        ),
        "yes-no": (
            ("yes/no: AUC, log loss, calibration error", "local", "joined", "score"),
            yes_no(results),
        ),
    }


def markdown(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    heading = list(heading)
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
