r"""Online co-regularisation, OCA-k-l: linear views that learn by stochastic gradient steps,
labelled and unlabelled.

A weight vector is kept as w = a·v, so that a step shrinks all of w by one multiplication. The rest
of the step changes only the features of its rows, so the cost of a step is proportional to their
non-zeros, for any d.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args

import numpy as np
from scipy import sparse
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import UsageError
from coreg_core.estimators.parameters import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    fit_context,
    generator,
    one_a_view,
)
from coreg_core.estimators.targets import Regressor

Chosen: TypeAlias = int | Ints
Loss: TypeAlias = Literal["squared", "epsilon_insensitive", "pairwise", "hinge", "log_loss"]
# The largest second derivative of a loss; absent for a bounded slope with jumps.
CURVATURE: dict[Loss, float] = {"squared": 1.0, "log_loss": 0.25}
# Below this a is multiplied into v: both stay far from underflow, and at 1/(λt) it happens once in
# a million steps.
SMALLEST = 1e-6
FEW_ROWS = 16  # of sparse rows: up to here one by one is faster than a slice of the matrix
LARGEST = 1e100
DIVERGES = (
    "the steps diverge: lower eta0 or coupling, raise ridge, or scale the features to [-1, 1]."
)
DIVERGED = 0.25
"""The share of the views' mean squared prediction that is their variance: of two centred views, a
correlation below 1/2.
"""


class Rows:
    """A view's table, dense or CSR: products with chosen rows, or with one.

    An array of one costs three times a number.
    """

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
            return (
                float(self._table.multiply(self._table).sum(axis=1).max()) if self.shape[0] else 0.0
            )
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
        self.v = np.zeros(d)
        self.a = 1.0

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
    r"""Equation 6 on the labelled ``rows`` (targets ``y``) and the unlabelled ``more``; each view
    from the old weights.

    $w_v \leftarrow (1 - \eta_v\lambda_v) w_v - \eta_v \frac1k X_v^\top \partial L(X_v w_v)
    - 4 \eta_v \frac{\mu}{l} Z_v^\top \sum_u (Z_v w_v - Z_u w_u)$. UsageError: the steps diverge;
      the weights are unchanged.
    """
    M = len(weights)
    (k, l) = (1 if isinstance(each, int) else len(each) for each in (rows, more))  # noqa: E741
    coupled = terms.coupling > 0 and l > 0 and M > 1
    own = [w.dot(table, rows) for w, table in zip(weights, X, strict=True)]
    others = [w.dot(table, more) for w, table in zip(weights, Z, strict=True)] if coupled else []
    total = sum(others)
    squares = _sum(sum(p * p for p in others))
    if not squares + _sum(sum(p * p for p in own)) < LARGEST**2:
        raise UsageError(DIVERGES)
    for v, (w, lam) in enumerate(zip(weights, terms.ridge, strict=True)):
        eta = (
            1.0 / (lam * t)
            if terms.eta0 is None
            else terms.eta0[v] / (1.0 + terms.eta0[v] * lam * (t - 1))
        )
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

    While the views' share of variance is above `DIVERGED`, l doubles up to ``most``; below it
    halves down to its start (section 3.1 of the paper).
    """
    n = len(y)
    m = Z[0].shape[0] if Z else 0
    least = 2 if terms.loss == "pairwise" else 1
    if not least <= k <= n:
        raise UsageError(
            f"n_labelled_step={k!r}: choose {least} to {n}, the labelled rows that there are."
        )
    if m and l > m:
        raise UsageError(
            f"n_unlabelled_step={l!r}: choose 1 to {m}, the unlabelled rows that there are."
        )
    first = size = min(l, m)
    limit = min(max(most or 0, first), m)
    rows = _Draws(n, rng)
    more = _Draws(m, rng)
    targets = y.tolist() if k == 1 < n else y
    with np.errstate(over="ignore", invalid="ignore"):  # steps that diverge raise an error
        for t in range(1, n_steps + 1):
            chosen = rows.next(k)
            diverged = step(weights, terms, t, X, chosen, targets[chosen], Z, more.next(size))
            size = min(2 * size, limit) if diverged > DIVERGED else max(size // 2, first)
        if (
            not max(float(np.abs(w).max(initial=0.0)) for w in [each.w for each in weights])
            < LARGEST
        ):
            raise UsageError(DIVERGES)  # no prediction follows the last step
    return size


def objective(
    loss: Loss,
    ridge: Any,
    eta0: Any,
    X: Sequence[Rows],
    Z: Sequence[Rows],
    coupling: float = 0.0,
    epsilon: float = 0.0,
) -> Objective:
    r"""The terms from an estimator's parameters: one value of ``ridge`` and ``eta0`` for all views,
    or one each.

    For ``eta0="auto"`` $\eta_0 = 1/(\lambda_v + c\|x\|^2 + 4\mu M\|z\|^2)$ with the longest rows,
    so that no step can overshoot. c is the loss's `CURVATURE`. Without curvature and coupling that
    is Algorithm 1, 1/(λt).
    """
    M = len(X)
    lam = _positive(ridge, M, "ridge")
    if eta0 is None or not isinstance(eta0, str):
        return Objective(
            loss, lam, None if eta0 is None else _positive(eta0, M, "eta0"), coupling, epsilon
        )
    apart = 4.0 * coupling * M * max((table.longest for table in Z), default=0.0) if M > 1 else 0.0
    bend = CURVATURE.get(loss, 0.0)
    with np.errstate(over="ignore"):
        own = np.array([bend * table.longest if bend else 0.0 for table in X])
        return Objective(
            loss, lam, (1.0 / (np.array(lam) + own + apart)).tolist(), coupling, epsilon
        )


def slope(loss: Loss, p: Any, y: Any, epsilon: float = 0.0) -> Any:
    """∂L/∂p of predictions p (k,), times k, or of one number.

    ½(p − y)²: p − y. max(0, |p − y| − ε): the sign of p − y outside of ε, else 0. max(0, 1 − y·p):
    −y where y·p < 1, else 0. log(1 + exp(−y·p)): −y/(1 + exp(y·p)). Pairwise: max(0, 1 − (pᵢ − pⱼ))
    where yᵢ > yⱼ, the mean over the k(k−1)/2 pairs.

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
        self._n = n
        self._rng = rng
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
    if all(
        isinstance(each, int | float | np.integer | np.floating) and 0 < each < np.inf
        for each in numbers
    ):
        return [float(each) for each in numbers]
    raise UsageError(f"{name}={value!r}: needs positive numbers.")


class OCA(Regressor):
    r"""$\sum_v [\frac1n \sum_i \frac12 (w_v^\top x_i^v - y_i)^2 + \frac{\lambda_v}{2}\|w_v\|^2] +
    \frac{\mu}{m} \sum_{u \ne v} \sum_j (w_u^\top z_j^u - w_v^\top z_j^v)^2$, by stochastic gradient
    steps.

    Source: de Ruijter, Tsivtsivadze (2012), equations 5 and 6, Algorithm 1; equation 6 corrects a
    sign and a 1/k in its line 5. At μ = 0 it is the paper's "PEGASOS MV", and with one view Pegasos
    (Shalev-Shwartz, Singer, Srebro, 2007).

    In the place of the square (section 3.1 of the paper names both), ``loss="epsilon_insensitive"``
    has max(0, |w_vᵀx_i^v − y_i| − ε). ``loss="pairwise"`` ranks: it has max(0, 1 − w_vᵀ(x_i^v −
    x_j^v)) for each pair of rows with y_i > y_j, the mean over all pairs. Only the order of y
    counts, and only that of the predictions has a meaning. For two classes of −1 and 1, "hinge" is
    max(0, 1 − y·p) and "log_loss" log(1 + exp(−y·p)) with p = w_vᵀx^v; the sign decides.

    Departures: the objective has λ/2, because equation 6 shrinks by 1 − ηλ, which is the gradient
    of that. Numeric targets are less their mean, and by default the steps begin so small that none
    can overshoot. Scale features to [−1, 1].

    Parameters
    ----------
    ridge
        λ > 0, a number or one a view.
    coupling
        μ ≥ 0; each pair of views counts twice.
    eta0
        η₀: the steps are η₀ / (1 + η₀ λ (t−1)); a number or one a view. "auto": the largest stable
        one, 1/(λ + c‖x‖² + 4μM‖z‖²) with the longest rows and c the largest curvature of the loss.
        None: 1/(λt), as in Algorithm 1; it can diverge.
    n_labelled_step
        k; at least 2 for "pairwise", which compares k² pairs.
    n_unlabelled_step
        l.
    max_unlabelled_step
        l doubles up to this while more than a quarter of the views' mean squared prediction is
        their variance, and halves again below. None: l stays.
    n_steps
        steps of k labelled and l unlabelled rows, drawn anew each.
    fit_intercept
        subtract the mean of the labels, and add it back; only with the losses of numbers. False is
        the paper's form.
    loss
        "squared", "epsilon_insensitive", which outliers among the labels move less, "pairwise",
        "hinge" or "log_loss".
    epsilon
        ε ≥ 0 of that loss, in units of y.
    random_state
        of the rows drawn.

    Attributes
    ----------
    coef_
        w, one (d_v,) a view. intercept_. n_unlabelled_step_: the last l.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Z = rng.uniform(-1, 1, size=(50, 4)), rng.uniform(-1, 1, size=(500, 4))
    >>> model = OCA(n_steps=500, random_state=0).fit([X[:, :2], X[:, 2:]], X.sum(axis=1), [Z[:, :2],
        Z[:, 2:]])
    >>> model.predict([Z[:, :2], Z[:, 2:]]).shape
    (500,)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "ridge": [POSITIVE, "array-like"], "coupling": [NOT_NEGATIVE],
        "eta0": [StrOptions({"auto"}), POSITIVE, "array-like", None], "n_labelled_step": [COUNT],
        "n_unlabelled_step": [COUNT], "max_unlabelled_step": [COUNT, None], "n_steps": [COUNT],
        "fit_intercept": ["boolean"], "loss": [StrOptions({*get_args(Loss)})],
        "epsilon": [NOT_NEGATIVE],
        "random_state": ["random_state"],
    }  # fmt: skip

    def __init__(
        self,
        *,
        ridge: float | Sequence[float] = 0.01,
        coupling: float = 0.1,
        eta0: str | float | Sequence[float] | None = "auto",
        n_labelled_step: int = 1,
        n_unlabelled_step: int = 1,
        max_unlabelled_step: int | None = None,
        n_steps: int = 10_000,
        fit_intercept: bool = True,
        loss: Loss = "squared",
        epsilon: float = 0.1,
        random_state: Any = None,
    ):
        self.ridge = ridge
        self.coupling = coupling
        self.eta0 = eta0
        self.n_labelled_step = n_labelled_step
        self.n_unlabelled_step = n_unlabelled_step
        self.max_unlabelled_step = max_unlabelled_step
        self.n_steps = n_steps
        self.random_state = random_state
        self.fit_intercept = fit_intercept
        self.loss = loss
        self.epsilon = epsilon

    @fit_context
    def fit(self, X_views: Sequence[Any], y: Any, Z_views: Sequence[Any] = ()) -> Self:
        """M tables of the same labelled rows (n, d_v), their targets (n,), and M tables of shared
        rows (m, d_v), dense or CSR.

        UsageError: a parameter out of range, k or l above the number of rows, or steps that
        diverge.
        """
        X = [Rows(table) for table in X_views]
        target = np.asarray(y, dtype=np.float64)
        Z = [Rows(table) for table in Z_views] if self.coupling > 0 else []
        centred = self.fit_intercept and self.loss in ("squared", "epsilon_insensitive")
        self.intercept_ = float(target.mean()) if centred else 0.0
        weights = [Weights(table.shape[1]) for table in X]
        self.n_unlabelled_step_ = descend(
            weights, objective(self.loss, self.ridge, self.eta0, X, Z, self.coupling, self.epsilon),
            X,
            target - self.intercept_, Z, n_steps=self.n_steps, k=self.n_labelled_step,
            l=self.n_unlabelled_step,
            most=self.max_unlabelled_step, rng=generator(self.random_state),
        )  # fmt: skip
        self.coef_ = [w.w for w in weights]
        return self

    def predict_views(self, X_views: Sequence[Any]) -> Any:
        """Every view's prediction, (M, n)."""
        check_is_fitted(self)
        return self.intercept_ + np.array(
            [table @ w for table, w in zip(X_views, self.coef_, strict=True)]
        )

    def predict(self, X_views: Sequence[Any]) -> Any:
        """The mean of the views' predictions, (n,)."""
        return self.predict_views(X_views).mean(axis=0)
