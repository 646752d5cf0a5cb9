"""What a study found, in sentences."""

from collections.abc import Iterator, Sequence

import numpy as np

from coreg_sim.benefit.summary import HARM, Figure, SiteOutcome, figure

# Regimes that are known to be hard, and the methods in their finding.
_HARD = {
    "n10": ("additive", "together-own-pick"),
    "shuffled50": ("additive", "together-own-pick"),
    "same50": ("additive", "additive-common", "together-own-pick"),
    "n200": ("additive", "together-own-pick"),
}
JUDGED, OTHER = "judged on", "other sets"  # groups of sets
FEW = 30  # sites: with fewer, another draw changes the sentences


def percent(value: float | None) -> str:
    return "" if value is None or not np.isfinite(value) else f"{100 * value:+.1f} %"


def share(value: float, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f} %"


def findings(groups: dict[str, list[SiteOutcome]]) -> list[str]:
    """The answer for each group of sets of the research; for other tables the answer for each regime."""
    out = [f"Harmed: the error is more than {100 * HARM:.0f} % larger than that of the site alone."]
    for name, among in groups.items():
        for heading, part in _parts(name, among):
            own, pick = figure(part, "additive"), figure(part, "together-own-pick")
            if own is None or pick is None:
                continue
            sentence = (
                f"{heading}: joined models {percent(own.mean)} on average, {share(own.harmed, 1)} of {len(part)} sites harmed; "
                f"scored together, used only where a site's own cross-validation prefers it, {percent(pick.mean)}, "
                f"{share(pick.harmed, 1)} harmed."
            )
            if name == OTHER and (default := figure(part, "together-private")) is not None:
                sentence += (
                    f' These scores need rows = "common" in the study. With the default, "private": {percent(default.mean)}, '
                    f"{share(default.harmed, 1)} harmed."
                )
            if (mean := figure(part, "mean-of-labels")) is not None:
                sentence += f" Predicting the mean of the labels: {percent(mean.mean)}. {_beside_mean(mean, own, pick)}"
            out.append(sentence)
            if name == JUDGED:
                fine = own.mean <= -0.06 and own.harmed <= 0.08, pick.mean <= -0.2 and pick.harmed <= 0.04
                words = tuple("reached" if each else "missed" for each in fine)
                out.append(
                    f"Targets on these sets: joined models at least 6 % better with at most 8 % harmed ({words[0]}); scored "
                    f"together at least 20 % better with at most 4 % harmed ({words[1]})."
                )
        if len(among) < FEW:
            out.append(
                f"This is based on only {len(among)} simulated sites. Use more draws (--draws 10) before you decide."
            )
    return out


def _parts(name: str, among: list[SiteOutcome]) -> Iterator[tuple[str, list[SiteOutcome]]]:
    if name != OTHER:
        sets = len({site.set for site in among})
        yield f"{sets} set{'s' * (sets > 1)} ({name})", among
        return
    for regime in dict.fromkeys(site.regime for site in among):
        yield f"{regime.name} ({regime.about})", [site for site in among if site.regime == regime]


def _beside_mean(mean: Figure, own: Figure, pick: Figure) -> str:
    better = own.mean < mean.mean - HARM, pick.mean < mean.mean - HARM
    by = f"by more than {100 * HARM:.0f} %"
    match better:
        case (True, True):
            return f"Joined models and scores made together are both better than that mean {by}."
        case (True, False):
            return f"Joined models are better than that mean {by}, scores made together are not."
        case (False, True):
            return f"Scores made together are better than that mean {by}, joined models are not."
        case _:
            return (
                f"No model is better than that mean {by}. Joining brings nothing here: the columns predict too little."
            )


def limits(found: Sequence[SiteOutcome]) -> list[str]:
    """Sentences about regimes with small or negative gains."""
    out = []
    for regime, methods in _HARD.items():
        if len({site.regime.name for site in found}) == 1:
            break  # the answer has it
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
