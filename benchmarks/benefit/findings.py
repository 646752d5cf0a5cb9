"""What a study found, in sentences."""

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.benefit.summary import HARM, Figure, SiteOutcome, figure

# Regimes that are known to be hard, and the methods in their finding.
_HARD = {
    "n10": ("additive", "together-own-pick"),
    "shuffled50": ("additive", "together-own-pick"),
    "same50": ("additive", "additive-common", "together-own-pick"),
    "n200": ("additive", "together-own-pick"),
}
JUDGED = "judged on"  # the group of sets on which no choice was made


def percent(value: float | None) -> str:
    return "" if value is None or not np.isfinite(value) else f"{100 * value:+.1f} %"


def share(value: float, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f} %"


def findings(groups: dict[str, list[SiteOutcome]]) -> list[str]:
    """The answer for each group of sets."""
    out = [f"Harmed: the error is more than {100 * HARM:.0f} % larger than that of the site alone."]
    for name, part in groups.items():
        own, pick, sets = figure(part, "additive"), figure(part, "together-own-pick"), len({site.set for site in part})
        assert own
        assert pick
        sites = "sites" if all(min(site.regime.labels) for site in part) else "sites with labels"
        out.append(
            f"{sets} set{'s' * (sets > 1)} ({name}): joined models {percent(own.mean)} on average, {share(own.harmed, 1)} of "
            f"{len(part)} {sites} harmed; checked scores (all sites know the labelled rows, used only where a site's own "
            f"cross-validation prefers it) {percent(pick.mean)}, {share(pick.harmed, 1)} harmed."
        )
        out += [*_beside_ridge(part, own), *_beside_mean(part, own)]
        if name == JUDGED:
            fine = own.mean <= -0.06 and own.harmed <= 0.08, pick.mean <= -0.2 and pick.harmed <= 0.04
            words = tuple("reached" if each else "missed" for each in fine)
            out.append(
                f"Goals that we set for these sets: joined models at least 6 % better with at most 8 % harmed ({words[0]}); "
                f"checked scores at least 20 % better with at most 4 % harmed ({words[1]})."
            )
    return out


def _beside_ridge(part: Sequence[SiteOutcome], own: Figure) -> Iterator[str]:
    """A linear model that every site can have alone."""
    if (ridge := figure(part, "ridge-alone")) is None:
        return
    ridge_is_better = float(np.mean([site.change["ridge-alone"] < site.change["additive"] for site in part]))
    yield (
        f"A linear ridge regression (scikit-learn's RidgeCV) on the site's own columns: {percent(ridge.mean)}. It is better than "
        f"the joined model ({percent(own.mean)}) at {share(ridge_is_better)} of the sites."
        + " On average it is the better model."
        * (ridge.mean < own.mean)
    )


def _beside_mean(part: Sequence[SiteOutcome], own: Figure) -> Iterator[str]:
    """The mean of the labels, which needs no column."""
    if (mean := figure(part, "mean-of-labels")) is None:
        return
    scores = [f for name in ("together-private", "together-own-pick") if (f := figure(part, name)) is not None]
    joined, together = (
        (1.0 + change) / (1.0 + mean.mean) < 1.0 - HARM for change in (own.mean, min(score.mean for score in scores))
    )
    told, by = f"The mean of the labels as the prediction: {percent(mean.mean)}.", f"by more than {100 * HARM:.0f} %"
    if joined or together:
        which = "Joined models and scores" if joined and together else "Joined models" if joined else "Scores"
        not_ = "" if joined and together else " Scores are not." if joined else " Joined models are not."
        yield f"{told} {which} are better than that mean {by}.{not_}"
        return
    yield f"{told} Neither joined models nor scores are better than that mean {by}."


def limits(found: Sequence[SiteOutcome]) -> list[str]:
    """Sentences about regimes with small or negative gains."""
    out = []
    for regime, methods in _HARD.items():
        there = [site for site in found if site.judged and site.labels and site.regime.name == regime]
        changes = [
            f"`{method}` {percent(f.mean)} ({share(f.harmed)} harmed)"
            for method in methods
            if (f := figure(there, method)) is not None
        ]
        if changes:
            out.append(f"{there[0].regime.about}: {', '.join(changes)}.")
    counted = [site for site in found if site.counted]
    by_set = [
        (f, name)
        for name in {s.set for s in counted}
        if (f := figure([s for s in counted if s.set == name], "additive"))
    ]
    if len(by_set) > 1:
        worst, name = min(by_set, key=lambda each: (-each[0].harmed, each[1]))
        out.append(
            f"Joined models harm the largest share of sites on {name}: {share(worst.harmed)}, "
            f"{percent(worst.mean)} on average."
        )
    return out
