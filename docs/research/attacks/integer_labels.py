"""Labels of yes and no are integers, so colluding members find all of them from few exact sums, by
lattice reduction.

The opened b is Φᵀ times the labels. For two members of three, with 15 features each, these are 30
equations for 50 unknown labels: too few for algebra. But each holds to four digits, and only one
vector of zeros and ones fits. It is the shortest vector of a lattice (Kannan 1987), which the
algorithm of Lenstra, Lenstra and Lovász (1982) finds. The noise on entries does not prevent it,
because b has none. Enough noise on labels does.

Labels that are flipped by `label_epsilon` are zeros and ones too, so they are found in the same
way. The guarantee does not depend on it: it is about the flipped labels themselves.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from federation import reported
from training import rows_of, train

from coreg_core.additive.exchange import SiteExchange
from coreg_core.additive.label_privacy import unbiased

TABLES = 4
COLLUDING = 2
UNIT = 16.0
COUNT = 1e4
ROUNDING = 1e-4
NOISES = ((0.0, 0.0), (0.1, 0.0), (0.1, 0.1), (0.1, 0.25), (0.1, 0.5))
EPSILONS = (4.0, 1.0)


def reduced(B: Any) -> Any:
    """An LLL-reduced basis, in which all pairs of one parity are exchanged at once (Villard
    1992).
    """
    for sweep in range(5000):
        R = np.linalg.qr(B.T, mode="r")
        for i in range(1, len(B)):
            for j in range(i - 1, -1, -1):
                if times := np.rint(R[j, i] / R[j, j]):
                    B[i] -= times * B[j]
                    R[:, i] -= times * R[:, j]
        size = np.diag(R) ** 2
        swap = np.flatnonzero(np.diag(R, 1) ** 2 + size[1:] < 0.99 * size[:-1])
        if not len(swap):
            break
        swap = swap[swap % 2 == swap[sweep % len(swap)] % 2]
        B[np.append(swap, swap + 1)] = B[np.append(swap + 1, swap)]
    return B


def integers(A: Any, b: Any, count: float, error: float) -> Any:
    """The zeros and ones y with this sum and Aᵀy near b, for labels with such an error; None if the
    basis shows none.

    Equations are made orthogonal, and weighed by their error against that of a label, which is at
    most 1/2.
    """
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    (n, d) = U.shape
    weight = UNIT / (2.0 * np.maximum(error, ROUNDING / s))
    B = np.zeros((n + 1, n + d + 2))
    B[:n, :n] = UNIT * np.eye(n)
    B[-1, -1] = UNIT
    B[:n, n:-2] = np.rint(weight * U)
    B[:n, -2] = COUNT
    B[-1, n:-2] = np.rint(weight * (U.sum(axis=0) - 2.0 * (Vt @ b) / s))
    B[-1, -2] = COUNT * (n - 2.0 * np.rint(count))
    for row in reduced(B):
        if (np.abs(row[[*range(n), -1]]) == UNIT).all():
            return (1.0 + row[-1] * row[:n] / UNIT**2) / 2.0
    return None


def found(made: list[SiteExchange], y: Any) -> float | None:
    """The share of the others' labels that the colluding members find; None if no zeros and ones
    fit.
    """
    T = made[0].terms
    part = made[0].fits[0].moments.parts[0]
    told = np.concatenate([each.start.told[:, 0] for each in made])
    A = np.concatenate(
        [each.common[:, :d] for each, d in zip(made[:COLLUDING], T.d, strict=False)], axis=1
    )
    owner = T.flags.argmax(axis=0)
    hidden = owner >= COLLUDING
    level = T.targets[0].levels[owner]
    b = part.b[: A.shape[1]] + A.T @ level - A[~hidden].T @ told[~hidden]
    error = float(np.std(np.concatenate([each.start.error[:, 0] for each in made])[hidden]))
    count = part.r[COLLUDING:].sum() + level[hidden].sum()
    rules = made[0].rules
    if rules.private_labels:
        low, high = unbiased(np.array([0.0, 1.0]), rules)[:, 0]  # in place of 0 and 1
        b = (b - low * A[hidden].sum(axis=0)) / (high - low)
        count = (count - low * hidden.sum()) / (high - low)
        y = (told > 0.5).astype(float)  # the flipped labels
        error = 0.0
    guess = integers(A[hidden], b, count, error)
    return None if guess is None else float(np.mean(guess == y[hidden]))


@reported
def attack(
    tables: int = TABLES,
    noises: tuple[tuple[float, float], ...] = NOISES,
    epsilons: tuple[float, ...] = EPSILONS,
) -> dict[str, Any]:
    """In how many of four tables two of three members find all labels, by the noise on entries and
    on labels; with ε, all flipped labels.
    """
    answers = {}
    cases = [(f"{noise:g} and {labels:g}", (noise, labels), {}) for noise, labels in noises]
    for epsilon in epsilons:
        terms = {"task": "classification", "label_epsilon": epsilon}
        cases.append((f"0.1 and ε = {epsilon:g}", (0.1, 0.0), terms))
    for name, noise, terms in cases:
        shares = []
        for seed in range(tables):
            rows = {
                name: replace(data, y=1.0 * (data.y > 0))
                for name, data in rows_of(seed=seed).items()
            }
            made = train(rows, *noise, **terms)[1]
            shares.append(found(made, np.concatenate([data.y for data in rows.values()])))
        answers[name] = shares.count(1.0)
    return answers
