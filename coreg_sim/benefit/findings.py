"""What a study found, in sentences."""

from collections.abc import Sequence

import numpy as np

from coreg_sim.benefit.summary import HARM, Figure, SiteOutcome, figure

# Regimes that are known to be hard, and the methods in their finding.
_HARD = {
    "n10": ("additive", "together-own-pick"),
    "shuffled50": ("additive", "together-own-pick"),
    "same50": ("additive", "additive-common", "together-own-pick"),
    "n200": ("additive", "together-own-pick"),
}
FEW = 30  # sites: with fewer, another draw changes the sentences


def percent(value: float | None) -> str:
    return "" if value is None or not np.isfinite(value) else f"{100 * value:+.1f} %"


def share(value: float, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f} %"


def findings(groups: dict[str, list[SiteOutcome]]) -> list[str]:
    out = []
    for name, among in groups.items():
        own, pick = figure(among, "additive"), figure(among, "together-own-pick")
        sets = len({site.set for site in among})
        if own is not None and pick is not None:
            out.append(
                f"{sets} set{'s' * (sets > 1)} ({name}): joined models {percent(own.mean)} on average, "
                f"{share(own.harmed, 1)} of the sites harmed (worse by more than {100 * HARM:.0f} %); "
                f"scored together, where a site's own folds favour it, {percent(pick.mean)}, {share(pick.harmed, 1)} harmed."
            )
            if name == "judged on":
                fine = own.mean <= -0.06 and own.harmed <= 0.08, pick.mean <= -0.2 and pick.harmed <= 0.04
                words = tuple("reached" if each else "missed" for each in fine)
                out.append(
                    f"Targets on these sets: joined models at least 6 % better with at most 8 % harmed ({words[0]}); scored "
                    f"together at least 20 % better with at most 4 % harmed ({words[1]})."
                )
            if (mean := figure(among, "mean-of-labels")) is not None:
                out.append(
                    f"The mean of the labels in place of any model: {percent(mean.mean)}. {_beside_mean(mean, own, pick)}"
                )
            if len(among) < FEW:
                out.append(
                    f"These are only {len(among)} sites of some federations. Use more draws (--draws 10) before you decide."
                )
    return out


def _beside_mean(mean: Figure, own: Figure, pick: Figure) -> str:
    better = own.mean < mean.mean - HARM, pick.mean < mean.mean - HARM
    by = f"by more than {100 * HARM:.0f} %"
    match better:
        case (True, True):
            return f"Joined models and scores made together are better than that {by}."
        case (True, False):
            return f"Joined models are better than that {by}, scores made together are not."
        case (False, True):
            return f"Scores made together are better than that {by}, joined models are not."
        case _:
            return f"Nothing is better than that {by}: the columns predict little, and a smaller error says little."


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
