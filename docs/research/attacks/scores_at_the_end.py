"""A training ends with joint scores. What do they tell a member beyond the moments that it has?

*Labels.* The score of a labelled individual is nearer to its label than what a member's own columns
predict, and it knows that label. It would tell more than a tenth of what the member's own model
leaves open. So no member gets the scores of others' labelled individuals.

*Features.* A score is one equation on the features of all sites, with noise. For an individual
without a label it tells a member a small part of what its own columns leave open of another site's
features. All members but one have the last site's part of the score: a projection of its features.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from federation import reported
from training import left_out, read, rows_of, train

from coreg_core.additive.exchange import SiteExchange

SEEDS = range(2)


def beyond(own: Any, score: Any, truth: Any) -> float:
    """The share of what own columns leave open of the truth that a score tells beside them."""
    both = np.column_stack([own, score])
    return read(truth, left_out(both, truth), left_out(own, truth))


def _features(made: Sequence[SiteExchange], rows: Any) -> list[Any]:
    """Each site's features of these individuals."""
    widths = made[0].terms.d
    return [each.start.W[rows, :d] for each, d in zip(made, widths, strict=True)]


def labels(made: Sequence[SiteExchange]) -> float:
    """Of others' labels, if their individuals' scores were told to the first site."""
    rows = np.flatnonzero(made[0].terms.flags[1:].any(axis=0))
    y = np.concatenate([each.start.rows.y for each in made[1:]])
    phi = _features(made, rows)
    score = np.concatenate(phi, axis=1) @ made[0].fits[0].coef
    return beyond(phi[0], score, y)


def features(made: Sequence[SiteExchange], colluding: int) -> float:
    """Of the last site's features of individuals without a label, to so many first sites."""
    phi = _features(made, made[0].terms.scored)
    own = np.concatenate(phi[:colluding], axis=1)
    return beyond(own, made[0].scores[:, 0], phi[-1])


@reported
def attack() -> Iterator[tuple[str, Any]]:
    """Shares of what own columns leave open, by sites × labels: others' labels, another site's
    features for one member, and for all but one.
    """
    for sites, labelled in ((3, 60), (5, 60)):
        made = [train(rows_of(sites, labelled, 400, seed=s), 0.01, 0.5)[1] for s in SEEDS]
        yield (
            f"{sites} x {labelled}",
            {
                "labels": float(np.mean([labels(each) for each in made])),
                "features, one": float(np.mean([features(each, 1) for each in made])),
                "features, all but one": float(
                    np.mean([features(each, sites - 1) for each in made])
                ),
            },
        )
