r"""The questions of a training of the additive objective, and their answers: everything that crosses the wire.

Every question goes to every site; only the *sum* of the answers is ever used, taken in site order. A question is public
to the sites, an answer is two arrays that add: vectors over the shared instances, and a few scalars.

| question | carries | an answer sums to | labels in it |
|---|---|---|---|
| LABELS | – | n, Σy | two scalars |
| SPREAD | the mean | Σ(y − mean)² | one scalar |
| SCORE | mean, deviation | Σ f_v(Z)/e_v, Σ 1/e_v | one vector |
| SMOOTHER | the sum of scores | Q_E = Σ S_vᵀE_v | none |
| FIXED_POINT, affine | x, and g after a tuning step | T(x) | one vector |
| FIXED_POINT, linear | a direction | T(x) − T(0) | none |
| TRACES | x, Q_E once | Σ‖w‖²/τ₀², Σγ | two scalars |
| SMOOTHED | ρ_s | D, e, and Σσ⁻²‖S‖², Σσ⁻²‖S‖√n | none |
| GRADIENT | ρ_s, δ | Σ τ²‖g‖², Σ τ²‖Z‖² | none |
| JOINT | x of fold columns | Σ (y − a − s)²/(n σ₀²), rows left out | a scalar a column |
| FORECAST | x of fold columns | Σ of squared errors joined, alone, and how many | three scalars a fold |
| MODEL | x | – | none |
| TOGETHER | – | Σ h_v on other shared instances: a job of its own (`plan.Scoring`) | as far as h_v learnt them |

e_v is the site's leave-one-out error. x holds s (m), q (m) and a, one below the other, a column each. Source: design,
7.2 and 7.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.views import Part
from coreg_core.numerics.arrays import Arr, Ints

ColumnKind: TypeAlias = Literal["solution", "probe"]


class Ask(IntEnum):
    """The kinds of question; see the module's table."""

    LABELS = 0
    SPREAD = 1
    SCORE = 2
    SMOOTHER = 3
    FIXED_POINT = 4
    TRACES = 5
    SMOOTHED = 6
    GRADIENT = 7
    JOINT = 8
    FORECAST = 9
    MODEL = 10
    TOGETHER = 11


@dataclass(frozen=True)
class Operator:
    """The fixed point of a column: the rows left out at every site at once, and multipliers of noise and prior.

    ``fold`` None: no row is left out. ``refit``: the sites choose width, ridge and smoother again from the kept rows and
    apply the full run's multipliers (the forecast); otherwise only the rows change.
    """

    fold: int | None = None
    refit: bool = False
    noise: float = 1.0
    prior: float = 1.0


@dataclass(frozen=True)
class Column:
    """One column of a question: the solution, or probe ``probe`` (labels replaced by fixed signs), of one operator."""

    kind: ColumnKind = "solution"
    probe: int = 0
    operator: Operator = Operator()


@dataclass(frozen=True, eq=False)
class Question:
    """A question to every site. ``step`` is the number of tuning steps made, which determines the sites' noise and prior."""

    ask: Ask
    targets: Float64[Arr, "r k"]
    columns: tuple[Column, ...] = ()
    part: Part = "linear"
    step: int = 0
    scalars: tuple[float, ...] = ()
    aside: Float64[Arr, "m p"] | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer of a site, or a sum of answers: both add."""

    vectors: Float64[Arr, "r k"]
    scalars: Float64[Arr, " j"]

    def __add__(self, other: "Answer") -> "Answer":
        return Answer(self.vectors + other.vectors, self.scalars + other.scalars)


NOTHING: Arr = np.zeros((0, 0))
NO_SCALARS: Arr = np.zeros(0)


def split(
    x: Float64[Arr, "r k"],
) -> tuple[Float64[Arr, "m k"], Float64[Arr, "m k"], Float64[Arr, " k"]]:
    """(s, q, a) of a point."""
    m = (len(x) - 1) // 2
    return x[:m], x[m : 2 * m], x[2 * m]


def stack(s: Float64[Arr, "m k"], q: Float64[Arr, "m k"], a: Float64[Arr, " k"]) -> Float64[Arr, "r k"]:
    """The point of (s, q, a)."""
    return np.concatenate([s, q, a[None]])


def folds_of(n_rows: int, n_folds: int, seed: int) -> list[Ints]:
    """The rows that each fold leaves out: a shuffle that depends on the seed and the number of rows alone."""
    order = np.random.default_rng([seed, n_rows]).permutation(n_rows)
    return [np.sort(order[f::n_folds]) for f in range(n_folds)]


def probe_signs(n_rows: int, n_probes: int, seed: tuple[int, ...]) -> Float64[Arr, "n p"]:
    """E (n, P): ±1, drawn by the site for itself and never sent."""
    return np.where(np.random.default_rng(seed).random((n_rows, n_probes)) < 0.5, -1.0, 1.0)


def right_sides(
    columns: Sequence[Column], y: Float64[Arr, " n"], signs: Float64[Arr, "n p"] | None
) -> Float64[Arr, "n k"]:
    """The labels of each column: y, or the probe's signs."""
    right = np.empty((len(y), len(columns)))
    for j, column in enumerate(columns):
        right[:, j] = y if signs is None or column.kind == "solution" else signs[:, column.probe]
    return right
