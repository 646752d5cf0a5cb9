"""What a study found, in sentences."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from coreg_sim.benefit import yes_no
from coreg_sim.benefit.summary import HARM, Figure, SiteOutcome, figure

# Regimes that are known to be hard, and the methods in their finding.
_HARD = {
    "n10": ("additive", "together-own-pick"),
    "shuffled50": ("additive", "together-own-pick"),
    "same50": ("additive", "additive-common", "together-own-pick"),
    "n200": ("additive", "together-own-pick"),
}
JUDGED, OTHER = "judged on", "your data"  # groups of sets
SHOWN = 0.0005  # a change that is not printed as 0.0 %
FEW = 30  # sites: with fewer, another draw changes the sentences
OFTEN = 10  # so many of 100 resamples of the draws with another verdict are worth a sentence
_BY_SITE = {"additive": "joined model", "together-private": "scored together", "together-own-pick": "checked scores"}
WORTH, RISK = 0.05, 0.05  # of the verdict: the least gain, and the largest share of sites harmed


def percent(value: float | None) -> str:
    return "" if value is None or not np.isfinite(value) else f"{100 * value:+.1f} %"


def share(value: float, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f} %"


def findings(groups: dict[str, list[SiteOutcome]]) -> list[str]:
    """The answer for each group of sets of the research; for other tables the answer for each regime."""
    out = [f"Harmed: the error is more than {100 * HARM:.0f} % larger than that of the site alone."]
    if OTHER in groups:
        out = [
            "Error: the root mean square error; of a yes/no target, that of the probability (the root of the Brier score). "
            "Changes are against the site's local model, ± one standard error over the draws. Harmed: the error is more than "
            f"{100 * HARM:.0f} % larger.",
            'Checked scores need rows = "common" in the study: all sites know the labelled individuals. A site uses these scores '
            "only where its own cross-validation prefers them.",
        ]
    for name, among in groups.items():
        for heading, part in _parts(name, among):
            own, pick = figure(part, "additive"), figure(part, "together-own-pick")
            if own is None or pick is None:
                continue
            default = figure(part, "together-private")
            if name == OTHER and default is not None:
                out += [_answer(heading, part, own, default, pick), *_beyond(part, own, default, pick)]
                if len(part) < FEW:
                    out.append(
                        f"These are only {len(part)} results. Raise --draws until there are {FEW} or more, before you decide."
                    )
                out += [f"{told} The verdict does not use the AUC." for told in yes_no.findings(part)]
                verdict = _verdict(part)
                out.append(f"Verdict for {part[0].regime.name}: {verdict}{_unsure(part, verdict)}")
                continue
            sites = "sites" if all(min(site.regime.labels) for site in part) else "sites with labels"
            out.append(
                f"{heading}: joined models {percent(own.mean)} on average, {share(own.harmed, 1)} of {len(part)} {sites} harmed; "
                "checked scores (all sites know the labelled rows, used only where a site's own cross-validation prefers it) "
                f"{percent(pick.mean)}, {share(pick.harmed, 1)} harmed."
            )
            out += [*_beside_ridge(part, own), *_beside_mean(part, own)]
            if name == JUDGED:
                fine = own.mean <= -0.06 and own.harmed <= 0.08, pick.mean <= -0.2 and pick.harmed <= 0.04
                words = tuple("reached" if each else "missed" for each in fine)
                out.append(
                    f"Goals that we set for these sets: joined models at least 6 % better with at most 8 % harmed ({words[0]}); "
                    f"checked scores at least 20 % better with at most 4 % harmed ({words[1]})."
                )
        if len(among) < FEW and name != OTHER:
            out.append(
                f"This is based on only {len(among)} simulated sites. Use more draws (--draws 30) before you decide."
            )
    return out


def _answer(heading: str, part: list[SiteOutcome], own: Figure, default: Figure, pick: Figure) -> str:
    """A line for each model of a regime: its mean change, and the share of sites harmed."""
    rows = [
        ("joined model", _uncertain(part, "additive", own), f"{share(own.harmed, 1)} harmed"),
        (
            'scored together, rows = "private"',
            _uncertain(part, "together-private", default),
            f"{share(default.harmed, 1)} harmed",
        ),
        (
            'checked scores, rows = "common"',
            _uncertain(part, "together-own-pick", pick),
            f"{share(pick.harmed, 1)} harmed",
        ),
    ]
    if (ridge := figure(part, "ridge-alone")) is not None:
        better = f"beats joined: {share(_ridge_is_better(part))}"
        rows.append(("RidgeCV on the site's own columns alone", _uncertain(part, "ridge-alone", ridge), better))
    if (mean := figure(part, "mean-of-labels")) is not None:
        rows.append(("mean of the labels, without columns", _uncertain(part, "mean-of-labels", mean), ""))
    sites = "sites" if all(min(site.regime.labels) for site in part) else "sites with labels"
    lines = (f"\n    {words:<40}{change:>14}  {beside:>14}".rstrip() for words, change, beside in rows)
    return f"{heading}, {len(part)} simulated {sites}:{''.join(lines)}"


def _uncertain(part: list[SiteOutcome], method: str, found: Figure) -> str:
    """A mean change ± its standard error over the draws."""
    means = [
        np.mean([site.change[method] for site in part if site.draw == draw and method in site.change])
        for draw in dict.fromkeys(site.draw for site in part)
    ]
    if len(means) < 2:
        return percent(found.mean)
    return f"{percent(found.mean)} ± {100 * float(np.std(means, ddof=1)) / len(means) ** 0.5:.1f}"


def _beyond(part: list[SiteOutcome], own: Figure, default: Figure, pick: Figure) -> Iterator[str]:
    """What the lines of a regime do not show at once."""
    if default.mean >= SHOWN:
        common = ' If all sites know the labelled individuals, set rows = "common".' if pick.mean < 0.0 else ""
        yield f"With the default rows, scoring together is worse here than each site alone.{common}"
    if not any(_beat_the_mean(part, own)):
        pooled = figure(part, "pooled")
        mean = figure(part, "mean-of-labels")
        beside = ""
        if pooled is not None and mean is not None:
            better = (1.0 + pooled.mean) / (1.0 + mean.mean) - 1.0
            side = "below" if better < 0.0 else "above"
            beside = f". With pooled data the error is {100 * abs(better):.1f} % {side} that of the mean"
        tail = (
            ""
            if any(site.record.get("yes_no") for site in part)
            else ", and the logarithm of a target with a long tail"
        )
        yield (
            f"Neither joined models nor scores are better than the mean of the labels by more than {100 * HARM:.0f} %{beside}. "
            f"Try more labels{tail}, before you conclude that the columns predict too little."
        )


def _parts(name: str, among: list[SiteOutcome]) -> Iterator[tuple[str, list[SiteOutcome]]]:
    if name != OTHER:
        sets = len({site.set for site in among})
        yield f"{sets} set{'s' * (sets > 1)} ({name})", among
        return
    for regime in dict.fromkeys(site.regime for site in among):
        part = [site for site in among if site.regime == regime]
        yield _called(part), part


def _called(part: Sequence[SiteOutcome]) -> str:
    """A regime in words, with the number of shared rows that the table had for it."""
    regime, counts = part[0].regime, [site.record["shared"] for site in part if "shared" in site.record]
    if regime.sizes or not counts:
        return f"{regime.name} ({regime.about})"
    ends = " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))
    return f"{regime.name} ({regime.about}, {ends} shared rows)"


def by_site(found: Sequence[SiteOutcome], names: Sequence[str]) -> list[str]:
    """Where the columns of each site are given: what joining brings to each of them, and its verdict, by regime."""
    out, width = [], max(map(len, names))
    for called, part in _parts(OTHER, list(found)):
        lines, verdicts = [" " * width + "".join(f"{words:>18}" for words in _BY_SITE.values())], list[str]()
        for v, name in enumerate(names):
            own = [site for site in part if site.site == v]
            found_of = [its for method in _BY_SITE if (its := figure(own, method)) is not None]
            cells = (f"{f'{percent(its.mean)} ({share(its.harmed)})':>18}" for its in found_of)
            lines.append(f"{name:<{width}}{''.join(cells)}" + "  without labels" * (not own[0].labels))
            verdict = _verdict(own)
            verdicts.append(f"Verdict for {name}: {_advice(verdict)}.{_unsure(own, verdict)}")
        told = f"{called}, by site (in brackets: the share of draws in which it is harmed). For a site its own verdict counts:"
        out.append("\n    ".join([told, *lines, *verdicts]))
    if len(names) == 2:
        out.append(
            "With two sites each can compute the answers of the other. Use at least three, or two that trust each other."
        )
    return out


def _unsure(part: list[SiteOutcome], verdict: str) -> str:
    """A sentence if resamples of the draws often give another advice; two reasons not to join are one advice."""
    by_draw = [[site for site in part if site.draw == draw] for draw in dict.fromkeys(site.draw for site in part)]
    chosen = np.random.default_rng(0).integers(len(by_draw), size=(100, len(by_draw)))
    counts = Counter(_advice(_verdict([site for i in each for site in by_draw[i]])) for each in chosen.tolist())
    del counts[_advice(verdict)]
    if not counts or (often := counts.most_common(1)[0])[1] < OFTEN:
        return ""
    other, times = often
    return f" Near a limit: {times} of 100 resamples of the draws give: {other}. Raise --draws."


def _advice(verdict: str) -> str:
    return verdict.partition(".")[0].partition(" with this number")[0]


def _verdict(part: list[SiteOutcome]) -> str:
    """The advice of docs/tutorials/your-own-table.md, section 5."""
    own, default, pick = (figure(part, name) for name in ("additive", "together-private", "together-own-pick"))
    assert own
    assert default
    assert pick
    joined, together = _beat_the_mean(part, own)
    ridge = _ridge_is_better(part) >= 0.5
    if not (joined or together):
        return (
            "do not join with this number of labels. Neither joined models nor scores are better than the mean of the labels by "
            "more than 2 %."
        )
    if joined and _pays(own) and not ridge:
        more = " Scores gain more." if min(default.mean, pick.mean) < own.mean - SHOWN else ""
        return f"join. Joined models pay.{more}"
    beside = " For predictions alone use ridge regression." if ridge else ""
    if sum(many > 0 for many in part[0].regime.labels) == 1:
        beside += " Where one site has all labels, FATE and SecretFlow offer more (docs/concepts/comparison.md)."
    if together and _pays(default):
        return f"join for scores only, with every agent connected.{beside}"
    if together and _pays(pick):
        return (
            'join for checked scores only (rows = "common", preset partners). All sites must know the labelled individuals, and '
            "each site uses the scores only where its own cross-validation prefers them. Members can then estimate these labels "
            f"about as well as the scores predict them.{beside}"
        )
    if joined and _pays(own):
        return "do not join. Ridge regression on the own columns is better than the joined model at half of the sites or more."
    small = min(own.mean, default.mean, pick.mean) > -WORTH
    gain = "reduction of the probability's error" if part[0].record.get("yes_no") else "gain"
    why = (
        f"The {gain} is below {100 * WORTH:.0f} %" if small else f"More than {100 * RISK:.0f} % of the sites are harmed"
    )
    return f"do not join. {why}.{beside}"


def _pays(figures: Figure) -> bool:
    return figures.mean <= -WORTH and figures.harmed <= RISK


def _ridge_is_better(part: list[SiteOutcome]) -> float:
    """The share of sites at which a linear ridge regression is better than the joined model."""
    return float(np.mean([site.change["ridge-alone"] < site.change["additive"] for site in part]))


def _beat_the_mean(part: list[SiteOutcome], own: Figure) -> tuple[bool, bool]:
    """Whether joined models, and scores made together, are better than the mean of the labels by more than `HARM`."""
    if (mean := figure(part, "mean-of-labels")) is None:
        return True, True
    scores = [f for name in ("together-private", "together-own-pick") if (f := figure(part, name)) is not None]
    joined, together = (
        (1.0 + change) / (1.0 + mean.mean) < 1.0 - HARM for change in (own.mean, min(score.mean for score in scores))
    )
    return joined, together


def _beside_ridge(part: list[SiteOutcome], own: Figure) -> Iterator[str]:
    """A linear model that every site can have alone."""
    if (ridge := figure(part, "ridge-alone")) is None:
        return
    yield (
        f"A linear ridge regression (scikit-learn's RidgeCV) on the site's own columns: {percent(ridge.mean)}. It is better than "
        f"the joined model ({percent(own.mean)}) at {share(_ridge_is_better(part))} of the sites."
        + " On average it is the better model."
        * (ridge.mean < own.mean)
    )


def _beside_mean(part: list[SiteOutcome], own: Figure) -> Iterator[str]:
    """The mean of the labels, which needs no column."""
    if (mean := figure(part, "mean-of-labels")) is None:
        return
    joined, together = _beat_the_mean(part, own)
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
