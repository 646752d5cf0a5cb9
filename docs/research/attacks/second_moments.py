"""Members of an additive training read, from the opened second moments, a part of others' labels
and of others' features.

*Labels.* Members know their features Φ of all individuals. The opened b is Φᵀ times the labels, one
equation for each feature. Of what a score leaves open, they read the part in the span of Φ: about
D/n for D features and n unknown labels.

*Features.* The moments Wᵀ Φ_v of own features W and of those of site v tell the part of Φ_v in the
span of W: what W predicts anyway, and about k/N of the rest. W has the further features of a site,
whose moments it opens alone.

*Few individuals without labels.* The moments of all individuals less those of the labelled ones are
the moments of the few. A training leaves them out of all sums, unless there are rows × features of
them.

The attackers know the score of every individual without its own label, and the sizes of all errors,
from the truth.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from federation import reported
from training import left_out, read, rows_of, train

from coreg_core.additive.exchange import SiteExchange

SEEDS = range(2)
# noise on entries, label noise
EXACT = (0.0, 0.0)
DEFAULT = (0.01, 0.5)
MORE = (0.01, 1.0)


def labels(made: list[SiteExchange], colluding: int) -> float:
    """The share, of what the score leaves open of the others' labels, that the first sites read
    together.
    """
    T = made[0].terms
    part = made[0].fits[0].moments.parts[0]
    y = np.concatenate([m.start.rows.y for m in made])
    error = np.concatenate([m.start.error[:, 0] for m in made])
    phi = [m.common[T.labelled, :d] for m, d in zip(made, T.d, strict=True)]
    owner = T.flags[:, T.labelled].argmax(axis=0)
    score = left_out(np.concatenate(phi, axis=1), y)
    level = T.targets[0].levels[owner]
    A = np.concatenate(phi[:colluding], axis=1)
    hidden = owner >= colluding
    b = part.b[: A.shape[1]] - A[~hidden].T @ (y + error - level)[~hidden]
    A = np.column_stack([A[hidden], *(owner[hidden] == v for v in range(colluding, len(made)))])
    rest = np.concatenate([b, part.r[colluding:]]) - A.T @ (score - level)[hidden]
    sure = 1.0 / (1.0 + np.mean(error[hidden] ** 2) / np.mean((y - score)[hidden] ** 2))
    return read(
        y[hidden], score[hidden] + sure * A @ np.linalg.pinv(A.T @ A, 1e-10) @ rest, score[hidden]
    )


def from_moments(A: Any, moments: Any, error: float, truth: Any) -> Any:
    """The best guess of ``truth`` from Aᵀ truth with such an error on its entries."""
    values, V = np.linalg.eigh(A.T @ A)
    values = np.maximum(values, 1e-12 * values[-1])
    return A @ (V / (values + error**2 / np.mean(truth**2))) @ (V.T @ moments)


def rows(made: list[SiteExchange]) -> dict[str, float]:
    """R² of the last site's features: what the first site's predict anyway, and with the moments
    that it opens.
    """
    T = made[0].terms
    own = made[0].common
    d = made[0].terms.d[-1]
    truth = made[-1].common[:, :d]
    error = T.noise * T.norms[0] * T.norms[-1]
    found = from_moments(own, made[0]._C_Wx[:, T.blocks[-1]] * T.rows, error, truth)
    mean = truth.mean(axis=0)
    return {"anyway": read(truth, left_out(own, truth), mean), "features": read(truth, found, mean)}


def unlabelled(made: list[SiteExchange], m: int) -> dict[str, float]:
    """The same for the m individuals without labels, from the difference of two sums; it is made up
    if they are in none.
    """
    T = made[0].terms
    noise = np.random.default_rng(0)
    own, other = (each.start.W[:, :d] for each, d in ((made[0], T.d[0]), (made[-1], T.d[-1])))
    anyway = left_out(own, other)[-m:]
    own = own[-m:]
    truth = other[-m:]
    error = (
        np.sqrt(2.0)
        * T.noise
        * (made[0].start.summary().rounded().norm * made[-1].start.summary().rounded().norm)
    )
    moments = own.T @ truth + error * noise.normal(size=(own.shape[1], truth.shape[1]))
    if T.rows > T.n_labelled:
        C = made[0].fits[0].moments.C * T.rows
        P = made[0].fits[0].moments.parts[0].P
        moments = (C - P)[T.blocks[0], T.blocks[-1]]
    guess = from_moments(own, moments, error, truth)
    mean = truth.mean(axis=0)
    told = {"anyway": read(truth, anyway, mean), "features": read(truth, guess, mean)}
    return told | {"summed": float(T.rows - T.n_labelled)}


def mean(each: list[dict[str, float]]) -> dict[str, float]:
    """Over the tables."""
    return {name: float(np.mean([one[name] for one in each])) for name in each[0]}


@reported
def attack() -> Iterator[tuple[str, Any]]:
    """Takes one to five minutes.

    By sites × labels, and noise on entries and labels; means of two tables, or one of 600 labels.

    one, all but one: the share that so many members read of what the score leaves open of the
    others' labels anyway, features: R² of another site's features from own ones, and with the
    opened moments summed: individuals without labels that enter the sums
    """
    for sites, labelled, terms in (
        (3, 50, EXACT),
        (3, 50, DEFAULT),
        (3, 50, MORE),
        (3, 200, EXACT),
        (3, 200, DEFAULT),
        (8, 20, DEFAULT),
        (8, 20, MORE),
    ):
        tables = SEEDS if labelled < 200 else SEEDS[:1]  # the larger ones differ less
        made = [train(rows_of(sites, labelled, seed=s), *terms)[1] for s in tables]
        told = [{"one": labels(m, 1), "all but one": labels(m, sites - 1)} | rows(m) for m in made]
        yield f"{sites} x {labelled}, {terms[0]:g} and {terms[1]:g}", mean(told)
    for m in (10, 180):
        made = [train(rows_of(3, 50, m, seed=s), *DEFAULT)[1] for s in SEEDS]
        yield f"{m} without labels", mean([unlabelled(each, m) for each in made])
