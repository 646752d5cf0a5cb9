"""Stochastic gradient steps on linear views, shared by OCA, multi-view Pegasos and Pegasos.

A weight vector is kept as w = a·v, so that a step shrinks all of w by one multiplication. The rest of the step changes only the
features of its rows, so the cost of a step is proportional to their non-zeros, for any d.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy import sparse

from coreg_core.errors import UsageError
from coreg_core.estimators._tables import one_a_view
from coreg_core.numerics.arrays import Arr, Ints

Chosen: TypeAlias = int | Ints
Loss: TypeAlias = Literal["squared", "epsilon_insensitive", "pairwise", "hinge", "log_loss"]
# The largest second derivative of a loss; absent for a bounded slope with jumps.
CURVATURE: dict[Loss, float] = {"squared": 1.0, "log_loss": 0.25}
# Below this a is multiplied into v: both stay far from underflow, and at 1/(λt) it happens once in a million steps.
SMALLEST = 1e-6
FEW_ROWS = 16  # of sparse rows: up to here one by one is faster than a slice of the matrix
LARGEST = 1e100
DIVERGES = "the steps diverge: lower eta0 or coupling, raise ridge, or scale the features to [-1, 1]."
DIVERGED = 0.25
"""The share of the views' mean squared prediction that is their variance: of two centred views, a correlation below 1/2."""


class Rows:
    """A view's table, dense or CSR: products with chosen rows, or with one. An array of one costs three times a number."""

    def __init__(self, table: Any):
        self._sparse = sparse.issparse(table)
        if self._sparse and not table.has_canonical_format:
            table = table.copy()
            table.sum_duplicates()  # each column at most once in a row
        self._table = table
        self.shape: tuple[int, int] = table.shape

    def dot(self, rows: Chosen, v: Arr) -> Any:
        """X[rows] v."""
        if isinstance(rows, int):
            columns, values = self._row(rows)
            return float(values @ (v if columns is None else v[columns]))
        if self._sparse and len(rows) <= FEW_ROWS:
            return np.array([self.dot(i, v) for i in rows.tolist()])
        return np.asarray(self._table[rows] @ v)

    def add(self, rows: Chosen, coef: Any, v: Arr) -> None:
        """V ← v + X[rows]ᵀ coef, in place."""
        if isinstance(rows, int):
            columns, values = self._row(rows)
            v[slice(None) if columns is None else columns] += coef * values
        elif not self._sparse:
            v += coef @ self._table[rows]
        elif len(rows) <= FEW_ROWS:
            for i, c in zip(rows.tolist(), coef.tolist(), strict=True):
                self.add(i, c, v)
        else:
            chosen = self._table[rows]
            np.add.at(v, chosen.indices, chosen.data * np.repeat(coef, np.diff(chosen.indptr)))

    @property
    def longest(self) -> float:
        """The largest ‖x‖² of a row; 0 without rows."""
        if self._sparse:
            return float(self._table.multiply(self._table).sum(axis=1).max()) if self.shape[0] else 0.0
        return float(np.einsum("ij,ij->i", self._table, self._table).max(initial=0.0))

    def _row(self, i: int) -> tuple[Any, Any]:
        """(columns, values) of one row; columns None: all of them."""
        t = self._table
        if not self._sparse:
            return None, t[i]
        span = slice(t.indptr[i], t.indptr[i + 1])
        return t.indices[span], t.data[span]


class Weights:
    """w = a·v of one view."""

    def __init__(self, d: int):
        self.v, self.a = np.zeros(d), 1.0

    @property
    def w(self) -> Arr:
        """The vector itself, (d,)."""
        return self.a * self.v

    def dot(self, table: Rows, rows: Chosen) -> Any:
        """Predictions on those rows."""
        return self.a * table.dot(rows, self.v)

    def shrink(self, factor: float) -> None:
        """W ← factor · w."""
        self.a *= factor
        if abs(self.a) < SMALLEST:
            self.v *= self.a
            self.a = 1.0

    def add(self, table: Rows, rows: Chosen, coef: Any) -> None:
        """W ← w + X[rows]ᵀ coef."""
        table.add(rows, coef / self.a, self.v)


@dataclass(frozen=True)
class Objective:
    """The terms of equation 5, and η₀ of each view (None: the steps of Algorithm 1)."""

    loss: Loss
    ridge: list[float]
    eta0: list[float] | None
    coupling: float = 0.0
    epsilon: float = 0.0


def step(
    weights: Sequence[Weights], terms: Objective, t: int,
    X: Sequence[Rows], rows: Chosen, y: Any, Z: Sequence[Rows], more: Chosen,
) -> float:  # fmt: skip
    r"""Equation 6 on the labelled ``rows`` (targets ``y``) and the unlabelled ``more``; each view from the old weights.

    $w_v \leftarrow (1 - \eta_v\lambda_v) w_v - \eta_v \frac1k X_v^\top \partial L(X_v w_v)
    - 4 \eta_v \frac{\mu}{l} Z_v^\top \sum_u (Z_v w_v - Z_u w_u)$. UsageError: the steps diverge; the weights are unchanged.
    """
    M, (k, l) = len(weights), (1 if isinstance(each, int) else len(each) for each in (rows, more))  # noqa: E741
    coupled = terms.coupling > 0 and l > 0 and M > 1
    own = [w.dot(table, rows) for w, table in zip(weights, X, strict=True)]
    others = [w.dot(table, more) for w, table in zip(weights, Z, strict=True)] if coupled else []
    total, squares = sum(others), _sum(sum(p * p for p in others))
    if not squares + _sum(sum(p * p for p in own)) < LARGEST**2:
        raise UsageError(DIVERGES)
    for v, (w, lam) in enumerate(zip(weights, terms.ridge, strict=True)):
        eta = 1.0 / (lam * t) if terms.eta0 is None else terms.eta0[v] / (1.0 + terms.eta0[v] * lam * (t - 1))
        w.shrink(1.0 - eta * lam)
        if k:
            w.add(X[v], rows, -eta / k * slope(terms.loss, own[v], y, terms.epsilon))
        if coupled:
            apart = M * others[v] - total  # Σ_u (p_v − p_u)
            w.add(Z[v], more, -4.0 * eta * terms.coupling / l * apart)
    return 1.0 - _sum(total * total) / (M * squares) if squares > 0 else 0.0


def _sum(values: Any) -> float:
    return float(values.sum()) if isinstance(values, np.ndarray) else float(values)


def descend(
    weights: Sequence[Weights], terms: Objective, X: Sequence[Rows], y: Arr, Z: Sequence[Rows], *,
    n_steps: int, k: int, l: int = 0, most: int | None = None, rng: np.random.Generator,  # noqa: E741
) -> int:  # fmt: skip
    """``n_steps`` steps of k labelled rows and l unlabelled ones, drawn anew each.

    While the views' share of variance is above `DIVERGED`, l doubles up to ``most``; below it halves down to its start
    (section 3.1 of the paper).
    """
    n, m = len(y), Z[0].shape[0] if Z else 0
    least = 2 if terms.loss == "pairwise" else 1
    if not least <= k <= n:
        raise UsageError(f"n_labelled_step={k!r}: choose {least} to {n}, the labelled rows that there are.")
    if m and l > m:
        raise UsageError(f"n_unlabelled_step={l!r}: choose 1 to {m}, the unlabelled rows that there are.")
    first = size = min(l, m)
    limit = min(max(most or 0, first), m)
    rows, more = _Draws(n, rng), _Draws(m, rng)
    targets = y.tolist() if k == 1 < n else y
    with np.errstate(over="ignore", invalid="ignore"):  # steps that diverge raise an error
        for t in range(1, n_steps + 1):
            chosen = rows.next(k)
            diverged = step(weights, terms, t, X, chosen, targets[chosen], Z, more.next(size))
            size = min(2 * size, limit) if diverged > DIVERGED else max(size // 2, first)
        if not max(float(np.abs(w).max(initial=0.0)) for w in [each.w for each in weights]) < LARGEST:
            raise UsageError(DIVERGES)  # no prediction follows the last step
    return size


def objective(
    loss: Loss, ridge: Any, eta0: Any, X: Sequence[Rows], Z: Sequence[Rows], coupling: float = 0.0, epsilon: float = 0.0
) -> Objective:
    r"""The terms from an estimator's parameters: one value of ``ridge`` and ``eta0`` for all views, or one each.

    For ``eta0="auto"`` $\eta_0 = 1/(\lambda_v + c\|x\|^2 + 4\mu M\|z\|^2)$ with the longest rows, so that no step can overshoot.
    c is the loss's `CURVATURE`. Without curvature and coupling that is Algorithm 1, 1/(λt).
    """
    M = len(X)
    lam = _positive(ridge, M, "ridge")
    if eta0 is None or not isinstance(eta0, str):
        return Objective(loss, lam, None if eta0 is None else _positive(eta0, M, "eta0"), coupling, epsilon)
    apart = 4.0 * coupling * M * max((table.longest for table in Z), default=0.0) if M > 1 else 0.0
    bend = CURVATURE.get(loss, 0.0)
    with np.errstate(over="ignore"):
        own = np.array([bend * table.longest if bend else 0.0 for table in X])
        return Objective(loss, lam, (1.0 / (np.array(lam) + own + apart)).tolist(), coupling, epsilon)


def slope(loss: Loss, p: Any, y: Any, epsilon: float = 0.0) -> Any:
    """∂L/∂p of predictions p (k,), times k, or of one number.

    ½(p − y)²: p − y. max(0, |p − y| − ε): the sign of p − y outside of ε, else 0. max(0, 1 − y·p): −y where y·p < 1, else 0.
    log(1 + exp(−y·p)): −y/(1 + exp(y·p)). Pairwise: max(0, 1 − (pᵢ − pⱼ)) where yᵢ > yⱼ, the mean over the k(k−1)/2 pairs.

    The text's subgradient of the hinge loss asks p > 0, a slip; its Algorithm 1 has y·p < 1.
    """
    match loss:
        case "squared":
            return p - y
        case "epsilon_insensitive":
            return 1.0 * (p - y > epsilon) - (y - p > epsilon)
        case "pairwise":
            above = np.sign(y[:, None] - y)
            missed = above * (above * (p[:, None] - p) < 1.0)
            return missed.sum(axis=1) * (-2.0 / max(len(y) - 1, 1))
        case "hinge":
            return -y * (y * p < 1.0)
        case "log_loss":
            return -0.5 * y * (1.0 - np.tanh(0.5 * y * p))


class _Draws:
    """The rows of each step, all different; of one row its number."""

    def __init__(self, n: int, rng: np.random.Generator):
        self._n, self._rng = n, rng
        self._everything = np.arange(n)
        self._ready: list[int] = []

    def next(self, size: int) -> Chosen:
        """The next step's rows; all of them where ``size`` is n."""
        if size in (0, self._n):
            return self._everything[:size]
        if size > 1:
            return self._rng.choice(self._n, size=size, replace=False)
        if not self._ready:  # one draw of many is much cheaper than many of one
            self._ready = self._rng.integers(0, self._n, size=1024)[::-1].tolist()
        return self._ready.pop()


def _positive(value: Any, n_views: int, name: str) -> list[float]:
    """One positive number for all views, or one each."""
    numbers = one_a_view(value, n_views, name)
    if all(isinstance(each, int | float | np.integer | np.floating) and 0 < each < np.inf for each in numbers):
        return [float(each) for each in numbers]
    raise UsageError(f"{name}={value!r}: needs positive numbers.")
