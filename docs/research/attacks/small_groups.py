"""Members read the features of few individuals from differences of the sums over all of them.

*Few without a label.* Features are centred. If they are centred over all shared individuals, then
the sums of features by owner of the label add up to minus the sum over the individuals without a
label. A training leaves few of them out of every sum, and centres over the rest alone.

*Owners of nearly the same labels.* Sums of features are opened by owner of the label. If one owner
has one individual more than another, then the difference of their sums is that individual's
features. The labels of individuals with the same owners enter if there are `least_labels` of these
individuals, so no difference is over fewer.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from federation import reported
from training import Rows, left_out, rows_of, train

from coreg_core.additive.exchange import SiteExchange
from site_agent.site_data import PrivateData

NOISE = (0.01, 0.5)  # the default, on entries and on labels
SITES = 4
LABELLED = 39  # of each site: one less than a random forest needs, which no sum is of
# With one individual each, and about five independent features. For 80 numbers, chance gives a
# square of the correlation of 0.01, and more than 0.3 once in ten million attacks.
TABLES = 16


def told(truths: Sequence[Any], known: Sequence[Any], statistics: Sequence[Any]) -> float:
    """The share of what own columns leave open that a statistic of the same numbers tells: the
    square of their correlation.
    """
    truth = np.concatenate(truths) - np.concatenate(known)
    statistic = np.concatenate(statistics) - np.concatenate(known)
    return float((truth @ statistic) ** 2 / max((truth @ truth) * (statistic @ statistic), 1e-300))


def _features(made: list[SiteExchange]) -> tuple[Any, Any]:
    """The last site's features of all individuals, and what the first site's own predict of
    them.
    """
    widths = made[0].terms.d
    own = made[0].start.W[:, : widths[0]]
    other = made[-1].start.W[:, : widths[-1]]
    return other, left_out(own, other)


def without_label(seed: int) -> tuple[Any, Any, Any]:
    """Features of the one individual without a label: true ones, known ones, and their sum."""
    made = train(rows_of(SITES, LABELLED, 1, seed=seed), *NOISE)[1]
    truth, known = _features(made)
    opened = made[0].fits[0].moments.parts[0].o.sum(axis=0)[made[0].terms.blocks[-1]]
    return truth[-1], known[-1], -opened


def _with_labels_of(rows: Rows, name: str, individuals: Any, truth: Any) -> PrivateData:
    """A site's data with labels of these individuals."""
    site = rows[name]
    return replace(site, X=site.Z[individuals], y=truth[individuals], positions=individuals)


def one_owner_more(seed: int) -> tuple[Any, Any, Any]:
    """The same of the individual that a has a label of, where b has all others of a."""
    rows = rows_of(SITES, LABELLED, seed=seed)
    y = np.concatenate([site.y for site in rows.values()])
    rows |= {
        "b": _with_labels_of(rows, "b", np.arange(1, LABELLED), y),
        "c": _with_labels_of(rows, "c", np.arange(LABELLED, 3 * LABELLED), y),
    }
    made = train(rows, *NOISE)[1]
    truth, known = _features(made)
    o = made[0].fits[0].moments.parts[0].o[:, made[0].terms.blocks[-1]]
    return truth[0], known[0], o[0] - o[1]


@reported
def attack() -> dict[str, float]:
    """The share of these individuals' features that the sums tell beyond own columns, with the
    default noise.
    """
    cases = {"one without a label": without_label, "one label more": one_owner_more}
    return {
        name: told(*zip(*map(case, range(TABLES)), strict=True)) for name, case in cases.items()
    }
