r"""The report of `coreg-sim benefit`: for each regime the change of each method, and a verdict.

    change = √(mse / mse alone) − 1, clipped to −0.9 and 2         harmed: change > 0.02

The rules of the verdict are in docs/tutorials/your-own-table.md.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from coreg_core.objectives.additive import Additive
from coreg_sim.benefit.partition import Regime
from coreg_sim.benefit.trial import SiteOutcome

Outcomes: TypeAlias = Sequence[SiteOutcome]
HARM = 0.02
WORTH = 0.05  # the least gain
RISK = 0.05  # the largest share of sites harmed
SHOWN = 0.0005  # a change that is not printed as 0.0 %
FEW = 30  # sites: with fewer, another draw changes the sentences
LEAST = Additive().least_rows
CLEAR = 0.05  # a difference of AUC
RARE = 0.03  # a share of one class
METHODS = {
    "joined": "joined model",
    "score": "score of all sites",
    "ridge": "RidgeCV on the site's own columns alone",
    "mean": "mean of the labels, without columns",
}
_BY_SITE = {"joined": "joined model", "score": "score"}
HEADING = (
    (
        "Error: the root mean square error; of a yes/no target, that of the probability (the root"
        " of the Brier score). Changes are against the site's local model, ± one standard error"
        f" over the draws. Harmed: the error is more than {100 * HARM:.0f} % larger. All models are"
        " with each site's own verdict."
    ),
    (
        "All sites know the labelled individuals. The noise of a federation's default rules is left"
        " out: with 50 to 200 labels at each of three sites it costs scores 2 to 4 points."
    ),
)


def percent(value: float) -> str:
    """With a sign and one decimal."""
    return f"{100 * value:+.1f} %"


def share(value: float, digits: int = 0) -> str:
    """Per cent, without a sign."""
    return f"{100 * value:.{digits}f} %"


@dataclass(frozen=True)
class Figure:
    """Mean and median change, and the share of harmed sites."""

    mean: float
    median: float
    harmed: float


def figure(part: Outcomes, method: str) -> Figure:
    values = np.array([site.change[method] for site in part])
    mean = float(values.mean())
    median = float(np.median(values))
    return Figure(mean, median, harmed=float(np.mean(values > HARM)))


def figures(part: Outcomes) -> dict[str, dict[str, float]]:
    """The values of a regime that `coreg-sim benefit --json` prints."""
    values = {}
    for method in (*METHODS, "pooled"):
        its = figure(part, method)
        values[method] = {
            "mean_change": round(its.mean, 5),
            "median_change": round(its.median, 5),
            "harmed": round(its.harmed, 5),
        }
    return values


def findings(regime: Regime, part: Outcomes) -> list[str]:
    """The answer of a regime in sentences. ``part``: the sites with labels."""
    out = [_answer(regime, part), *_beyond(part)]
    if len(part) < FEW:
        out.append(
            f"These are only {len(part)} results. Raise --draws until there are {FEW} or more,"
            " before you decide."
        )
    if part[0].areas:
        out.append(f"{_ranking(part)} The verdict does not use the AUC.")
    verdict = _verdict(regime, part)
    n = sum(regime.labels)
    few = ""
    if n < LEAST and verdict.startswith("join"):
        few = (
            f"\n    {n} labelled individuals: default policies refuse fewer than {LEAST}; lower"
            " least_rows in study and policies."
        )
    return [*out, f"Verdict for {regime.name}: {verdict}{few}"]


def by_site(regime: Regime, outcomes: Outcomes, names: Sequence[str]) -> str:
    """Where the columns of each site are given: what joining brings to each of them, and its
    verdict.
    """
    width = max(map(len, names))
    header = "".ljust(width)
    for words in _BY_SITE.values():
        header += f"{words:>18}"
    lines = [header]
    verdicts = list[str]()
    for v, name in enumerate(names):
        own = [site for site in outcomes if site.site == v]
        line = f"{name:<{width}}"
        for method in _BY_SITE:
            its = figure(own, method)
            cell = f"{percent(its.mean)} ({share(its.harmed)})"
            line += f"{cell:>18}"
        if not own[0].labels:
            line += "  without labels"
        lines.append(line)
        advice, *_ = re.split(r"\.| with this number", _verdict(regime, own))
        verdicts.append(f"Verdict for {name}: {advice}.")
    heading = (
        f"{_called(regime, outcomes)}, by site (in brackets: the share of draws in which it is"
        " harmed). For a site its own verdict counts:"
    )
    return "\n    ".join([heading, *lines, *verdicts])


def _called(regime: Regime, part: Outcomes) -> str:
    return f"{regime.name} ({regime.about}, {part[0].shared} shared rows)"


def _answer(regime: Regime, part: Outcomes) -> str:
    """A line for each model of a regime: its mean change, and the share of sites harmed."""
    sites = "sites with labels"
    if all(regime.labels):
        sites = "sites"
    answer = f"{_called(regime, part)}, {len(part)} simulated {sites}:"
    for method, words in METHODS.items():
        its = figure(part, method)
        beside = f"{share(its.harmed, 1)} harmed"
        if method == "ridge":
            beside = f"beats joined: {share(_ridge_is_better(part))}"
        if method == "mean":
            beside = ""
        change = _uncertain(part, method, its)
        answer += f"\n    {words:<40}{change:>14}  {beside:>14}".rstrip()
    return answer


def _uncertain(part: Outcomes, method: str, its: Figure) -> str:
    """A mean change ± its standard error over the draws."""
    by_draw: dict[int, list[float]] = defaultdict(list)
    for site in part:
        by_draw[site.draw].append(site.change[method])
    if len(by_draw) < 2:
        return percent(its.mean)
    means = [np.mean(changes) for changes in by_draw.values()]
    error = 100 * float(np.std(means, ddof=1)) / len(means) ** 0.5
    return f"{percent(its.mean)} ± {error:.1f}"


def _beyond(part: Outcomes) -> Iterator[str]:
    """What the lines of a regime do not show at once."""
    if not any(_beat_the_mean(part)):
        mean = figure(part, "mean").mean
        pooled = figure(part, "pooled").mean
        better = (1.0 + pooled) / (1.0 + mean) - 1.0
        side = "below" if better < 0.0 else "above"
        tail = ", and the logarithm of a target with a long tail"
        if part[0].areas:
            tail = ""
        yield (
            "Neither joined models nor scores are better than the mean of the labels by more than"
            f" {100 * HARM:.0f} %. With pooled data the error is {100 * abs(better):.1f} % {side}"
            f" that of the mean. Try more labels{tail}, before you conclude that the columns"
            " predict too little."
        )


def _ranking(part: Outcomes) -> str:
    """Of a yes/no target: mean AUC of each method, how often the joined model ranks otherwise, and
    a note on a rare class.
    """
    ranked = [site.areas for site in part if site.areas]
    means = []
    for method in ranked[0]:
        mean = np.mean([areas[method] for areas in ranked])
        means.append(f"{method} {mean:.2f}")
    change = np.array([areas["joined"] - areas["local"] for areas in ranked])
    lower = float(np.mean(change < -CLEAR))
    higher = float(np.mean(change > CLEAR))
    rare = min(min(site.positive, 1.0 - site.positive) for site in part)
    note = ""
    if rare < RARE:
        note = (
            f" Only {100 * rare:.1f} % of the test labels are of one class: events this rare were"
            " hardly studied."
        )
    return (
        f"For a ranking: area under the ROC curve (AUC): {', '.join(means)}. The joined model's"
        f" AUC is lower than the local one's by more than {CLEAR} at {share(lower)} of the sites,"
        f" and higher at {share(higher)}.{note}"
    )


def _verdict(regime: Regime, part: Outcomes) -> str:
    """The advice of docs/tutorials/your-own-table.md, section 5."""
    own = figure(part, "joined")
    score = figure(part, "score")
    joined, together = _beat_the_mean(part)
    ridge = _ridge_is_better(part) >= 0.5
    if not (joined or together):
        return (
            "do not join with this number of labels. Neither joined models nor scores are better"
            f" than the mean of the labels by more than {100 * HARM:.0f} %."
        )
    pays = joined and _pays(own)
    if pays and not ridge:
        more = ""
        if score.mean < own.mean - SHOWN:
            more = " Scores gain more."
        return f"join. Joined models pay.{more}"
    beside = _beside(regime, ridge=ridge)
    if together and _pays(score):
        return f"join for scores only, with every agent connected.{beside}"
    if pays:
        return (
            "do not join. Ridge regression on the own columns is better than the joined model at"
            " half of the sites or more."
        )
    why = f"More than {100 * RISK:.0f} % of the sites are harmed"
    if min(own.mean, score.mean) > -WORTH:
        gain = "gain"
        if part[0].areas:
            gain = "reduction of the probability's error"
        why = f"The {gain} is below {100 * WORTH:.0f} %"
    return f"do not join. {why}.{beside}"


def _beside(regime: Regime, *, ridge: bool) -> str:
    """Other methods to consider where joined models do not pay."""
    methods = ""
    if ridge:
        methods = " For predictions alone use ridge regression."
    if sum(many > 0 for many in regime.labels) == 1:
        methods += (
            " One site has all labels: from about 1,000 on vertical boosting gains more"
            " (docs/concepts/methods.md)."
        )
    return methods


def _pays(its: Figure) -> bool:
    return its.mean <= -WORTH and its.harmed <= RISK


def _ridge_is_better(part: Outcomes) -> float:
    """The share of sites at which a linear ridge regression is better than the joined model."""
    better = [site.change["ridge"] < site.change["joined"] for site in part]
    return float(np.mean(better))


def _beat_the_mean(part: Outcomes) -> tuple[bool, bool]:
    """Whether joined models, and scores made together, are better than the mean of the labels by
    more than `HARM`.
    """
    least = (1.0 + figure(part, "mean").mean) * (1.0 - HARM)
    own = figure(part, "joined").mean
    score = figure(part, "score").mean
    return 1.0 + own < least, 1.0 + score < least
