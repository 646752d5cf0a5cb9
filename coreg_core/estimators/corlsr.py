r"""Co-regularised least squares regression over any number of views, by five solvers of one problem."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from coreg_core.arrays import Arr, as_matrix, as_vector
from coreg_core.bases import RANK_TOLERANCE, EveryPoint, LabelledPoints, Span
from coreg_core.closed_form import consensus_closed_form, solve_stacked, textbook_view
from coreg_core.errors import BadData, UsageError
from coreg_core.estimators._inputs import one_a_view
from coreg_core.estimators._views import ViewsRegressor, deal
from coreg_core.kernels import Kernel, make_kernel
from coreg_core.loo import kernel_rule
from coreg_core.objective import (
    ROUNDING,
    Certificate,
    consensus_certificate,
    consensus_weight,
    disagreement,
    objective,
)
from coreg_core.rounds import SCHEDULE_NAMES, make_schedule, run_in_memory
from coreg_core.rounds.schedule import Stop, Terms, overall_stop
from coreg_core.views import KernelExpansion, Solution, View, make_view

SOLVERS = ("direct", "stacked", *SCHEDULE_NAMES)


class _ViewData(NamedTuple):
    kernel: Kernel
    X: Arr
    y: Arr
    Z: Arr
    ridge: float


class _Fit(NamedTuple):
    solutions: list[Solution]
    certificate: Certificate
    n_rounds: int
    stop: Stop


class CoRLSR(ViewsRegressor, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    r"""$\min_f \sum_v [\|y_v - f_v(X_v)\|^2 + \nu_v\|f_v\|^2] + \lambda \sum_{u,v} \|f_u(Z) - f_v(Z)\|^2$.

    Source: Brefeld et al. (2006), Definitions 3.1 (exact) and 3.2 (semi-parametric); solvers: docs/mathematics.md.

    Args:
        form: "exact" (f_v over kernels at X_v ∪ Z) or "semi-parametric" (over kernels at X_v).
        kernel: "gaussian" (exp(−‖x−x'‖²/σ)), "laplacian", "polynomial" or "linear".
        views: columns of each view (slices, positions, booleans or names) of one table; for a list of views it is not needed.
        bandwidth: σ: "paper", "median", "loo" (leave-one-out on the view's own labels), a positive number, or a sequence of
            these, one a view.
        ridge: ν: "paper", "loo", a positive number, or a sequence, one a view.
        coupling: λ ≥ 0. Each ordered pair of views counts once, so each pair counts twice.
        solver: "direct" (the closed form that holds for repeated rows too), "stacked" (the paper's own system, which says
            so when it is singular), "conjugate-gradients", "block-coordinate-descent" (the paper's Algorithm 1), "consensus".
        tol: stop when the certified gap Q − Q* is at most tol · Σ‖y_v‖² ...
        prediction_tol: ... and the certified error of every view's predictions on Z (2-norm) at most this;
            None: 1e-9 · max|y|.
        max_rounds: most rounds; sweeps for Algorithm 1.
        degree: of the polynomial kernel.
        offset: of the polynomial kernel.
        rank_tolerance: relative eigenvalue below which a direction of the semi-parametric span is cut.

    Attributes:
        predictions_unlabelled_: (M, m).
        objective_: Q at the models. disagreement_: its last sum, without λ.
        n_rounds_: rounds taken (0 for the closed forms). stop_: how they ended, a `Stop`.
        gap_, prediction_bound_: certified: Q − Q* ≤ gap_, and ‖ŷ_v − ŷ_v*‖₂ ≤ prediction_bound_ for every v.
        rank_: the dimension of each view's span that is in use, M numbers.
        functions_: the views' kernel expansions. bandwidth_, ridge_: the values in use, M each.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Z = rng.normal(size=(20, 4)), rng.normal(size=(50, 4))
    >>> y = X.sum(axis=1)
    >>> model = CoRLSR(coupling=0.01).fit([X[:, :2], X[:, 2:]], y, [Z[:, :2], Z[:, 2:]])
    >>> model.predict([Z[:, :2], Z[:, 2:]]).shape
    (50,)
    """

    def __init__(
        self,
        *,
        views: Any = None,
        form: str = "exact",
        kernel: str = "gaussian",
        bandwidth: str | float | Sequence[str | float] = "paper",
        ridge: str | float | Sequence[str | float] = "paper",
        coupling: float = 0.01,
        solver: str = "direct",
        tol: float = 1e-10,
        prediction_tol: float | None = None,
        max_rounds: int = 10_000,
        degree: int = 3,
        offset: float = 1.0,
        rank_tolerance: float = RANK_TOLERANCE,
    ):
        self.views = views
        self.form, self.kernel, self.bandwidth, self.ridge = form, kernel, bandwidth, ridge
        self.coupling, self.solver, self.tol, self.prediction_tol = coupling, solver, tol, prediction_tol
        self.max_rounds, self.degree, self.offset = max_rounds, degree, offset
        self.rank_tolerance = rank_tolerance

    def fit(self, X_views: Any, y: Any = None, Z_views: Sequence[Any] | None = None, *, label_mask: Any = None) -> Self:
        """Fit every view together, from a list of views or from one table.

        Args:
            X_views: M labelled tables (n_v, d_v); or, without ``Z_views``, one table (N, p) whose columns ``views`` deals out.
            y: M target vectors (n_v,), or one (n,) when the same labelled instances stand in each view. One table: targets
                (N,), NaN where missing; those rows are the unlabelled instances.
            Z_views: M tables (m, d_v): the same m unlabelled instances, in the same order.
            label_mask: one table: (N, M) booleans, may view v see the label of row i? None: all may see all.

        Raises:
            BadData: shapes that do not fit, or values that are not finite; says which view.
            UsageError: a parameter out of range, or a rule without a value for these rows.
            SingularSystem: solver="stacked" on data for which the paper's system is singular.
        """
        self.one_table_ = Z_views is None
        if Z_views is None:
            dealt = deal(self, X_views, y, self.views, label_mask)
            X_views, y, Z_views = dealt.X, dealt.y, dealt.Z
        data = self._check(X_views, y, Z_views)
        span: Span = EveryPoint() if self.form == "exact" else LabelledPoints()
        views = [make_view(span, d.kernel, d.X, d.y, d.Z, d.ridge, rank_tolerance=self.rank_tolerance) for d in data]
        fit = self._solve(data, views)
        predictions = np.array([s.prediction for s in fit.solutions])
        self.functions_: list[KernelExpansion] = [s.function for s in fit.solutions]
        self.predictions_unlabelled_ = predictions
        self.objective_ = objective([s.local_objective for s in fit.solutions], predictions, self.coupling)
        self.disagreement_ = disagreement(predictions)
        self.gap_, self.prediction_bound_ = fit.certificate.gap, fit.certificate.prediction_bound
        self.n_rounds_, self.stop_ = fit.n_rounds, fit.stop
        self.rank_ = np.array([view.rank for view in views])
        self.ridge_ = np.array([d.ridge for d in data])
        self.n_views_ = len(data)
        self.n_features_in_views_ = [d.X.shape[1] for d in data]
        return self

    def predict_views(self, X_views: Any) -> Any:
        """Every view's prediction, (M, n)."""
        check_is_fitted(self)
        X_views = self._tables(X_views)
        if len(X_views) != self.n_views_:
            raise BadData(f"X_views: {len(X_views)} views, the model was fitted with {self.n_views_}.")
        tables = [as_matrix(X, f"X_views[{v}]") for v, X in enumerate(X_views)]
        for v, (X, d) in enumerate(zip(tables, self.n_features_in_views_, strict=True)):
            if X.shape[1] != d:
                raise BadData(f"X_views[{v}]: {X.shape[1]} features, the view was fitted with {d}.")
        if len({len(X) for X in tables}) > 1:
            raise BadData(f"X_views: views of {[len(X) for X in tables]} instances; every view needs the same.")
        return np.array([f.predict(X) for f, X in zip(self.functions_, tables, strict=True)])

    def predict(self, X_views: Any) -> Any:
        """The mean of the views' predictions, (n,)."""
        return self.predict_views(X_views).mean(axis=0)

    # --- the parts of fit -----------------------------------------------------------------------------------------

    def _check(self, X_views: Sequence[Any], y_views: Any, Z_views: Sequence[Any]) -> list[_ViewData]:
        if self.form not in ("exact", "semi-parametric"):
            raise UsageError(f"form={self.form!r}: choose 'exact' or 'semi-parametric'.")
        if self.solver not in SOLVERS:
            raise UsageError(f"solver={self.solver!r}: choose one of {', '.join(map(repr, SOLVERS))}.")
        if not (np.isfinite(self.coupling) and self.coupling >= 0):
            raise UsageError(f"coupling={self.coupling!r}: needs a finite number of at least 0.")
        M = len(X_views)
        if M == 0 or len(Z_views) != M:
            raise BadData(f"{M} labelled and {len(Z_views)} unlabelled tables: one of each a view, at least one.")
        Xs = [as_matrix(X, f"X_views[{v}]") for v, X in enumerate(X_views)]
        Zs = [as_matrix(Z, f"Z_views[{v}]") for v, Z in enumerate(Z_views)]
        ys = [as_vector(y, f"y_views[{v}]") for v, y in enumerate(_targets(y_views, M))]
        for v, (X, y, Z) in enumerate(zip(Xs, ys, Zs, strict=True)):
            if len(X) == 0 or len(X) != len(y):
                raise BadData(f"view {v}: {len(X)} labelled rows and {len(y)} targets; needs as many, at least 1.")
            if X.shape[1] != Z.shape[1] or X.shape[1] == 0:
                raise BadData(f"view {v}: {X.shape[1]} features in X, {Z.shape[1]} in Z; needs as many, at least 1.")
            if len(Z) != len(Zs[0]):
                raise BadData(
                    f"view {v}: {len(Z)} unlabelled instances, view 0 has {len(Zs[0])}; all views share the same."
                )
        bandwidths, ridges = one_a_view(self.bandwidth, M, "bandwidth"), one_a_view(self.ridge, M, "ridge")
        rules = [
            kernel_rule(X, y, self.kernel, b, r, degree=self.degree, offset=self.offset)
            for X, y, b, r in zip(Xs, ys, bandwidths, ridges, strict=True)
        ]
        self.bandwidth_, resolved = np.array([sigma for sigma, _ in rules]), [nu for _, nu in rules]
        kernels = [
            make_kernel(self.kernel, bandwidth=float(b), degree=self.degree, offset=self.offset)
            for b in self.bandwidth_
        ]
        return [_ViewData(*parts) for parts in zip(kernels, Xs, ys, Zs, resolved, strict=True)]

    def _solve(self, data: list[_ViewData], views: list[View]) -> _Fit:
        bounds = np.array([view.bound() for view in views])
        match self.solver:
            case "direct":
                z = consensus_closed_form(views, self.coupling)
                solutions, certificate = self._at(views, z, bounds)
                return _Fit(solutions, certificate, 0, Stop.CONVERGED)
            case "stacked":
                return self._stacked(data, views, bounds)
            case _:
                return self._rounds(data, views, bounds)

    def _at(self, views: list[View], z: Arr, bounds: Arr) -> tuple[list[Solution], Certificate]:
        weight = consensus_weight(self.coupling, len(views))
        solutions = [view.solve(z, weight) for view in views]
        mean = np.mean([s.prediction for s in solutions], axis=0)
        scale = float(np.linalg.norm(z) + np.linalg.norm(mean))
        return solutions, consensus_certificate(float(np.linalg.norm(mean - z)), scale, weight, bounds)

    def _stacked(self, data: list[_ViewData], views: list[View], bounds: Arr) -> _Fit:
        exact = self.form == "exact"
        textbook = [textbook_view(d.kernel, d.X, d.y, d.Z, d.ridge, exact=exact) for d in data]
        coefs = solve_stacked(textbook, self.coupling)
        solutions, rounding = [], 0.0
        for t, c, d in zip(textbook, coefs, data, strict=True):
            residual = t.y - t.L @ c
            local = float(residual @ residual + t.ridge * (c @ (t.K @ c)))
            # K of condition 1e12 makes coefficients that cancel: Q is known to what their absolute values add up to.
            size = np.abs(c)
            rounding += t.ridge * float(size @ (np.abs(t.K) @ size))
            rounding += 2.0 * float(np.linalg.norm(residual) * np.linalg.norm(np.abs(t.L) @ size))
            solutions.append(Solution(KernelExpansion(d.kernel, t.points, c), t.U @ c, local))
        # The textbook solution answers no query, so it is certified by its distance to one that does: the models at
        # its own mean. Q − Q* is then the difference of the two objectives plus the other's gap.
        predictions = np.array([s.prediction for s in solutions])
        at_mean, certificate = self._at(views, predictions.mean(axis=0), bounds)
        others = np.array([s.prediction for s in at_mean])
        own_Q = objective([s.local_objective for s in solutions], predictions, self.coupling)
        its_Q = objective([s.local_objective for s in at_mean], others, self.coupling)
        apart = float(np.linalg.norm(predictions - others, axis=1).max(initial=0.0))
        gap = max(0.0, own_Q - its_Q) + ROUNDING * rounding + certificate.gap
        return _Fit(solutions, Certificate(gap, apart + certificate.prediction_bound), 0, Stop.CONVERGED)

    def _rounds(self, data: list[_ViewData], views: list[View], bounds: Arr) -> _Fit:
        largest = max(float(np.abs(d.y).max()) for d in data)
        terms = Terms(
            coupling=(float(self.coupling),),
            bounds=tuple(bounds.tolist()),
            initial_objective=sum(float(d.y @ d.y) for d in data),
            tolerance=self.tol,
            prediction_tolerance=1e-9 * largest if self.prediction_tol is None else self.prediction_tol,
            max_rounds=self.max_rounds,
        )
        schedule = make_schedule(self.solver, terms)
        state = run_in_memory(schedule, views)
        models, progress = schedule.models(state), schedule.progress(state)
        assert models is not None
        assert progress is not None
        weight = float(models.weights[0])
        solutions = [view.solve(models.of(v)[:, 0], weight) for v, view in enumerate(views)]
        certificate = Certificate(float(progress.gap[0]), float(progress.prediction_bound[0]))
        return _Fit(solutions, certificate, progress.round, overall_stop(progress.stops) or Stop.MAX_ROUNDS)


def _targets(y_views: Any, n_views: int) -> list[Any]:
    if not hasattr(y_views, "__len__"):
        raise BadData(f"y_views: {y_views!r} is no target vector; give one for all views, or one each.")
    # One vector of numbers stands for every view; a list of vectors is one a view.
    if all(np.ndim(y) == 0 for y in y_views):
        return [y_views] * n_views
    if len(y_views) != n_views:
        raise BadData(f"y_views: {len(y_views)} target vectors for {n_views} views; give one for all, or one each.")
    return list(y_views)
