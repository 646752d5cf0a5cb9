"""A member makes the model one feature of another site, and reads this feature of every individual
from the scores.

In a second training of the same rows it knows P and b from the first. It adds to b what makes P⁻¹ b
the chosen weights, and to the sum of squared labels what fits them. The other sites send their
parts of the score: of this model, the chosen feature. No check finds it, because b can be anything.
Whoever consents to scores, or to a score of the labelled individuals, relies on the members.
"""

from typing import Any
from unittest.mock import patch

import numpy as np
from federation import reported
from training import rows_of, train

from coreg_core.additive.exchange import SiteExchange
from coreg_core.additive.terms import LABEL_UNIT
from coreg_core.secure import cross_products as cross
from coreg_core.secure.sums import WORD
from site_agent.consent.memory import Memory

FEATURE, SIZE = (
    3,
    10.0,
)  # of the last site; deviations of its part of the score, in those of the labels


def words(values: Any, exponent: int) -> Any:
    """Fixed point."""
    return np.asarray(np.rint(np.ldexp(values, exponent)), dtype=np.int64).view(WORD)


def lie(first: SiteExchange) -> Any:
    """How the liar, the first site, adds: with these moments of the first training it
    replaces b.
    """
    T = first.terms
    part = first.fits[0].moments.parts[0]
    honest = SiteExchange.add
    weights = np.zeros(len(part.b))
    place = T.blocks[-1].start + FEATURE
    weights[place] = SIZE * T.targets[0].deviation / np.sqrt(part.P[place, place] / T.n_labelled)
    more = part.P @ weights - part.b
    squares = weights @ part.P @ weights

    def add(self: SiteExchange, messages: Any) -> Any:
        told, shares = honest(self, messages)
        if self.site == 0:
            unit = LABEL_UNIT * T.targets[0].deviation
            told["b"] = told["b"] + cross.rounded(words(more / (T.scale * unit), T.exponent))
            whole = words(squares / unit**2, T.exponent)
            told["scalars"][:, -1] += np.array(
                [whole & np.uint64(0xFFFFFFFF), whole >> np.uint64(32)]
            )
        return told, shares

    return add


def correlation(made: list[SiteExchange], received: Any) -> float:
    """R² of what the liar received, at its own individuals, with the chosen feature."""
    return float(np.corrcoef(received, made[-1].common[made[0].mine, FEATURE])[0, 1] ** 2)


def received_in(rows: Any, run: str, records: dict[str, Memory]) -> tuple[list[SiteExchange], Any]:
    """A session with the default noise, and the others' parts of the score at the liar's labelled
    individuals.
    """
    kept: list[Any] = []
    finish = SiteExchange.finish

    def finished(self: SiteExchange, parts: Any) -> Any:
        if self.site == 0:
            total = np.sum(parts, axis=0, dtype=WORD)
            kept.append(np.ldexp(total.view(np.int64).astype(float), -self.score_exponent))
        return finish(self, parts)

    with patch.object(SiteExchange, "finish", finished):
        return train(rows, 0.01, 0.5, run, records)[1], kept[0]


@reported
def attack() -> dict[str, Any]:
    """R² of the received scores with one feature of another site: of an honest model, and of the
    chosen one.
    """
    rows = rows_of(labelled=100)
    records = {name: Memory() for name in rows}
    honest, parts = received_in(rows, "run-1", records)
    with patch.object(SiteExchange, "add", lie(honest[0])):
        chosen, told = received_in(rows, "run-2", records)
    return {"honest": correlation(honest, parts), "chosen": correlation(chosen, told)}
