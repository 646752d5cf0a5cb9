r"""Changes of errors relative to each site alone, over a study's federations. Each set counts once.

    change = √(mse / mse alone) − 1, clipped to −0.9 and 2         harmed: change > 0.02

A mean is the mean over sets of the mean over a set's sites. A median weighs all sets equally. A share of harmed sites is the
mean over sets of the share in a set. Counted are sites with at least three labels (not shuffled), in regimes with
`Regime.counted`. Three methods follow the site's verdict:

- "additive": the blended own model if the verdict keeps it, else the model alone;
- "together-own-pick": the joint score if its error in own folds is smaller, else the model alone;
- "together-else-own": the same on common rows, else the own model of that training.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.benefit.partition import REGIMES, Regime
from benchmarks.papers.jobs import JSON
from coreg_core.additive.model.local_fit import LEAST_LABELS
from coreg_core.evaluation.losses import Paired
from coreg_core.evaluation.recommendation import Choice, own_choice, score_choice

HARM = 0.02
_CUT = (-0.9, 2.0)

OWN = (
    "agreement-0.1", "agreement-0.01", "agreement-loo", "agreement-exact", "additive-joined", "additive-blended",
    "additive", "additive-common", "distilled", "mean-of-labels", "ridge-alone", "hgb-alone", "extra-trees-alone",
)  # fmt: skip
TOGETHER = (
    "mean-of-sites", "best-site", "together-private", "together", "together-own-pick", "together-else-own",
    "together-grouped-3", "together-open", "pooled", "ridge-pooled", "hgb-pooled", "extra-trees-pooled",
)  # fmt: skip


@dataclass(frozen=True)
class SiteOutcome:
    """One site of one federation: its record, and the change of each method against the site alone."""

    set: str
    regime: Regime
    site: int
    labels: int
    judged: bool
    record: Mapping[str, JSON]
    change: Mapping[str, float]
    draw: str = ""

    @property
    def counted(self) -> bool:
        return self.judged and self.labels >= LEAST_LABELS and self.regime.counted

    @property
    def place(self) -> str:
        """The regime, with the kind of site if the sites differ."""
        most = max(self.regime.labels)
        if min(self.regime.labels) == most:
            return self.regime.name
        return f"{self.regime.name}: {'the rich one' if self.labels == most else 'the poor ones'}"


@dataclass(frozen=True)
class Figure:
    """Mean and median change, share of harmed sites, and number of sites."""

    mean: float
    median: float
    harmed: float
    sites: int

    def to_json(self) -> dict[str, float]:
        """Rounded, for the page."""
        return {
            "mean_change": round(self.mean, 5),
            "median_change": round(self.median, 5),
            "harmed": round(self.harmed, 5),
        }


def site_outcomes(results: Mapping[str, dict[str, JSON]]) -> list[SiteOutcome]:
    """All sites of all federations. A table too small for a regime has none."""
    return [site for key, result in results.items() if result for site in _of_federation(key, result)]


def _of_federation(key: str, result: dict[str, JSON]) -> Iterator[SiteOutcome]:
    name, regime, draw = key.rsplit("/", 2)
    for v, record in enumerate(result["sites"]):
        alone = result["alone"][v]
        change = {
            method: float(np.clip(np.sqrt(errors[v] / alone) - 1.0 if alone > 0 else 0.0, *_CUT))
            for method, errors in result["methods"].items()
        }
        own = own_choice(_beside(record["own"]))
        change["additive"] = change["additive-blended"] if own is Choice.JOINED else 0.0
        score = choice_of(record)
        change["together-own-pick"] = change["together"] if score is Choice.TOGETHER else 0.0
        at = {Choice.TOGETHER: "together", Choice.JOINED: "additive-common"}
        change["together-else-own"] = change[at[score]] if score in at else 0.0
        yield SiteOutcome(
            name,
            REGIMES[regime],
            v,
            record["labels"],
            record["judged"],
            record,
            change,
            draw,
        )


def choice_of(record: Mapping[str, JSON]) -> Choice:
    """What a site uses with common rows: "together" if it uses the checked scores."""
    return score_choice(own_choice(_beside(record["common"])), _beside(record["together"]))


def _beside(record: Mapping[str, JSON] | None) -> Paired | None:
    return None if record is None else Paired(**record)


def figure(found: Iterable[SiteOutcome], method: str) -> Figure | None:
    """The figures of a method over some sites, each set counted once; None without a site."""
    by_set = _by_set([(site.set, site.change[method]) for site in found if method in site.change])
    if not by_set:
        return None
    values = np.concatenate([np.array(each) for each in by_set.values()])
    weights = np.concatenate([np.full(len(each), 1.0 / len(each)) for each in by_set.values()])
    order = np.argsort(values, kind="stable")
    half = np.searchsorted(np.cumsum(weights[order]), 0.5 * weights.sum() * (1.0 - 1e-12))
    return Figure(
        float(np.mean([np.mean(each) for each in by_set.values()])),
        float(values[order][half]),
        float(np.mean([np.mean(np.array(each) > HARM) for each in by_set.values()])),
        len(values),
    )


def standard_errors(record: Mapping[str, JSON] | None) -> float | None:
    """A nested loss in standard errors; None without one."""
    if record is None or not record["standard_error"] > 0.0:
        return None
    return float(record["difference"] / record["standard_error"])


def _by_set(pairs: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {}
    for name, value in pairs:
        out.setdefault(name, []).append(value)
    return out


def headline(found: Sequence[SiteOutcome]) -> dict[str, JSON]:
    """The figures of each method and set."""
    counted = [site for site in found if site.counted]
    names = list(dict.fromkeys(site.set for site in counted))

    def group(methods: tuple[str, ...], among: Sequence[SiteOutcome]) -> dict[str, Figure]:
        return {method: f for method in methods if (f := figure(among, method)) is not None}

    return {
        "sites": {method: f.to_json() for method, f in group(OWN, counted).items()},
        "together": {method: f.to_json() for method, f in group(TOGETHER, counted).items()},
        "sets": {
            name: {
                method: round(f.mean, 5)
                for method, f in group(OWN + TOGETHER, [site for site in counted if site.set == name]).items()
            }
            for name in names
        },
    }


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None for fewer than five pairs or a constant side."""
    if len(x) < 5 or np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic)
