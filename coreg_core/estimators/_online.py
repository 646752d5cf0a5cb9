"""Stochastic gradient steps on linear views, shared by OCA, multi-view Pegasos and Pegasos.

A weight vector is kept as w = a·v, so that a step shrinks all of w by one multiplication. The rest of the step changes only the
features of its rows, so the cost of a step is proportional to their non-zeros, for any d.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy import sparse

from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr, Ints

Loss: TypeAlias = Literal["squared", "epsilon_insensitive", "hinge", "log_loss"]
# The largest second derivative of a loss; 0 for a bounded slope with jumps.
CURVATURE: dict[Loss, float] = {"squared": 1.0, "epsilon_insensitive": 0.0, "hinge": 0.0, "log_loss": 0.25}
# Below this a is multiplied into v: both stay far from underflow, and at 1/(λt) it happens once in a million steps.
SMALLEST = 1e-6
FEW_ROWS = 16  # of sparse rows: up to here one by one is faster than a slice of the matrix


class Rows:
    """A view's table, dense or CSR: products with chosen rows."""

    def __init__(self, table: Any):
        self._table = table
        self.shape: tuple[int, int] = table.shape
        self._sparse = sparse.issparse(table)

    def dot(self, rows: Ints, v: Arr) -> Arr:
        """X[rows] v."""
        if not self._sparse:
            out: Arr = self._table[rows] @ v
            return out
        if len(rows) > FEW_ROWS:
            return np.asarray(self._table[rows] @ v)
        return np.array([values @ v[columns] for columns, values in self._each(rows)])

    def add(self, rows: Ints, coef: Arr, v: Arr) -> None:
        """V ← v + X[rows]ᵀ coef, in place."""
        if not self._sparse:
            v += coef @ self._table[rows]
        elif len(rows) > FEW_ROWS:
            chosen = self._table[rows]
            np.add.at(v, chosen.indices, chosen.data * np.repeat(coef, np.diff(chosen.indptr)))
        else:
            for c, (columns, values) in zip(coef.tolist(), self._each(rows), strict=True):
                v[columns] += c * values  # columns are unique within a row: see `as_rows`

    @property
    def longest(self) -> float:
        """The largest ‖x‖² of a row; 0 without rows."""
        if self._sparse:
            return float(self._table.multiply(self._table).sum(axis=1).max()) if self.shape[0] else 0.0
        return float(np.einsum("ij,ij->i", self._table, self._table).max(initial=0.0))

    def row(self, i: int) -> tuple[Any, Any]:
        """(columns, values) of one row; columns None: all of them."""
        if not self._sparse:
            return None, self._table[i]
        t = self._table
        span = slice(t.indptr[i], t.indptr[i + 1])
        return t.indices[span], t.data[span]

    def _each(self, rows: Ints) -> list[tuple[Any, Any]]:
        return [self.row(i) for i in rows.tolist()]


def as_rows(table: Any) -> Rows:
    """A checked table, ready for steps; a sparse one with each column at most once in a row."""
    is_sparse = sparse.issparse(table)
    if is_sparse and not table.has_canonical_format:
        table = table.copy()
        table.sum_duplicates()
    return Rows(table)


class Weights:
    """w = a·v of one view."""

    def __init__(self, d: int):
        self.v, self.a = np.zeros(d), 1.0

    @property
    def w(self) -> Arr:
        """The vector itself, (d,)."""
        return self.a * self.v

    def dot(self, table: Rows, rows: Ints) -> Arr:
        """Predictions on those rows."""
        return self.a * table.dot(rows, self.v)

    def shrink(self, factor: float) -> None:
        """W ← factor · w."""
        self.a *= factor
        if abs(self.a) < SMALLEST:
            self.v *= self.a
            self.a = 1.0

    def add(self, table: Rows, rows: Ints, coef: Arr) -> None:
        """W ← w + X[rows]ᵀ coef."""
        table.add(rows, coef / self.a, self.v)


def step_size(eta0: float | None, ridge: float, t: int) -> float:
    r"""$\eta_t = \frac{1}{\lambda t}$ (Algorithm 1), or $\frac{\eta_0}{1 + \eta_0 \lambda (t-1)}$ from a start of one's own."""
    return 1.0 / (ridge * t) if eta0 is None else eta0 / (1.0 + eta0 * ridge * (t - 1))


def stable_starts(
    loss: Loss, ridge: Sequence[float], coupling: float, labelled: Sequence[Rows], unlabelled: Sequence[Rows]
) -> list[float]:
    r"""$\eta_0 = 1/(\lambda_v + c\|x\|^2 + 4\mu M\|z\|^2)$ with the longest rows, so that no step can overshoot.

    c is the loss's `CURVATURE`. Without curvature and coupling that is Algorithm 1, 1/(λt).
    """
    M = len(labelled)
    apart = 4.0 * coupling * M * max((Z.longest for Z in unlabelled), default=0.0) if M > 1 else 0.0
    own = [CURVATURE[loss] * X.longest if CURVATURE[loss] else 0.0 for X in labelled]
    with np.errstate(over="ignore"):
        return [1.0 / (lam + x + apart) for lam, x in zip(ridge, own, strict=True)]


def slope(loss: Loss, p: Arr, y: Arr, epsilon: float = 0.0) -> Arr:
    """∂L/∂p.

    ½(p − y)²: p − y. max(0, |p − y| − ε): the sign of p − y outside of ε, else 0. max(0, 1 − y·p): −y where y·p < 1, else 0.
    log(1 + exp(−y·p)): −y/(1 + exp(y·p)).

    The text's subgradient of the hinge loss asks p > 0, a slip; its Algorithm 1 has y·p < 1.
    """
    match loss:
        case "squared":
            return p - y
        case "epsilon_insensitive":
            return np.where(np.abs(p - y) > epsilon, np.sign(p - y), 0.0)
        case "hinge":
            return np.where(y * p < 1.0, -y, 0.0)
        case "log_loss":
            return np.asarray(-0.5 * y * (1.0 - np.tanh(0.5 * y * p)))


def _slope_at(loss: Loss, p: float, y: float, epsilon: float) -> float:
    """`slope` of one number: an array of one costs ten times as much."""
    match loss:
        case "squared":
            return p - y
        case "epsilon_insensitive":
            return math.copysign(1.0, p - y) if abs(p - y) > epsilon else 0.0
        case "hinge":
            return -y if y * p < 1.0 else 0.0
        case "log_loss":
            return -0.5 * y * (1.0 - math.tanh(0.5 * y * p))


def one_step(
    weights: Sequence[Weights],
    labelled: Sequence[Rows],
    rows: Ints,
    y: Arr,
    unlabelled: Sequence[Rows],
    more: Ints,
    *,
    loss: Loss,
    ridge: Sequence[float],
    coupling: float,
    eta: Sequence[float],
    epsilon: float = 0.0,
) -> None:
    """Equation 6 on the labelled ``rows`` (targets ``y``) and the unlabelled ``more``; every view from the old weights."""
    own = [w.dot(X, rows) for w, X in zip(weights, labelled, strict=True)]
    for v, p in enumerate(own):
        _check(v, float(np.abs(p).max(initial=0.0)))
    coupled = coupling > 0 and len(more) > 0 and len(weights) > 1
    others = np.array([w.dot(Z, more) for w, Z in zip(weights, unlabelled, strict=True)]) if coupled else None
    if others is not None:
        for v, p in enumerate(others):
            _check(v, float(np.abs(p).max(initial=0.0)))
    total = others.sum(axis=0) if others is not None else None
    for v, w in enumerate(weights):
        w.shrink(1.0 - eta[v] * ridge[v])
        if len(rows):
            w.add(labelled[v], rows, (-eta[v] / len(rows)) * slope(loss, own[v], y, epsilon))
        if others is not None:
            # Σ_{u≠v} (p_v − p_u) = M p_v − Σ_u p_u
            apart = len(weights) * others[v] - total
            w.add(unlabelled[v], more, (-4.0 * eta[v] * coupling / len(more)) * apart)


def single_step(
    weights: Sequence[Weights],
    labelled: Sequence[Rows],
    i: int,
    y: float,
    unlabelled: Sequence[Rows],
    j: int,
    *,
    loss: Loss,
    ridge: Sequence[float],
    coupling: float,
    eta: Sequence[float],
    epsilon: float = 0.0,
) -> None:
    """`one_step` on labelled row i and unlabelled row j (none: −1): the same in numbers instead of arrays of one."""
    own_rows = [X.row(i) for X in labelled]
    own = [_dot(w, *row) for w, row in zip(weights, own_rows, strict=True)]
    coupled = coupling > 0 and j >= 0 and len(weights) > 1
    other_rows = [Z.row(j) for Z in unlabelled] if coupled else []
    others = [_dot(w, *row) for w, row in zip(weights, other_rows, strict=True)] if coupled else []
    for v, p in enumerate((*own, *others)):
        _check(v % len(weights), abs(p))
    total = sum(others)
    for v, w in enumerate(weights):
        w.shrink(1.0 - eta[v] * ridge[v])
        change = _slope_at(loss, own[v], y, epsilon)
        if change != 0.0:
            _add(w, *own_rows[v], -eta[v] * change)
        if coupled:
            apart = len(weights) * others[v] - total
            _add(w, *other_rows[v], -4.0 * eta[v] * coupling * apart)


def _dot(w: Weights, columns: Any, values: Any) -> float:
    return w.a * float(values @ (w.v if columns is None else w.v[columns]))


def _add(w: Weights, columns: Any, values: Any, coef: float) -> None:
    if columns is None:
        w.v += (coef / w.a) * values
    else:
        w.v[columns] += (coef / w.a) * values  # columns are unique within a row: see `as_rows`


class Draws:
    """The rows of each step: ``size`` different ones of ``n``, all of them when size is n."""

    def __init__(self, n: int, size: int, rng: np.random.Generator):
        self._n, self._size, self._rng = n, size, rng
        self._everything = np.arange(n)
        self._ready: list[int] = []

    def next(self) -> Ints:
        """The next step's rows."""
        if self._size in (0, self._n):
            return self._everything[: self._size]
        if self._size > 1:
            return self._rng.choice(self._n, size=self._size, replace=False)
        return np.array([self.one()])

    @property
    def single(self) -> bool:
        """One row a step, or none."""
        return self._size <= 1

    def one(self) -> int:
        """The next step's only row; −1 where there is none."""
        if self._size == 0:
            return -1
        if not self._ready:  # one draw of many is much cheaper than many of one
            self._ready = self._rng.integers(0, self._n, size=1024)[::-1].tolist()
        return self._ready.pop()


def _check(v: int, size: float) -> None:
    # Checked on the predictions of a step, at the cost of its rows; a whole weight vector can be much longer.
    if not size < 1e100:
        raise UsageError(
            f"the steps diverge (view {v}): lower eta0 or coupling, raise ridge, or scale the features to [-1, 1]."
        )


def check_finite(weights: Sequence[Weights]) -> None:
    """Check the weights after the last step, which no prediction follows.

    Raises
    ------
    UsageError
        a weight is not finite, or too large.
    """
    for v, w in enumerate(weights):
        _check(v, float(np.abs(w.v).max(initial=0.0)) * abs(w.a))


def at_most(value: int, name: str, most: int, what: str) -> int:
    """A number of rows.

    Raises
    ------
    UsageError
        more than there are.
    """
    if value > most:
        raise UsageError(f"{name}={value!r}: choose 1 to {most}, {what}.")
    return value


def positive(value: Any, name: str) -> float:
    """A positive number of a list of them.

    Raises
    ------
    UsageError
        it is not.
    """
    if isinstance(value, int | float | np.integer | np.floating) and 0 < value < np.inf:
        return float(value)
    raise UsageError(f"{name}={value!r}: needs a positive number.")
