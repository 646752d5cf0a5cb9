r"""Co-regularised least squares regression over any number of views, by five solvers of one problem."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np

from coreg_core.agreement.closed_form import consensus_closed_form, solve_stacked, textbook_view
from coreg_core.agreement.objective import (
    Certificate,
    consensus_certificate,
    consensus_weight,
    disagreement,
    objective,
)
from coreg_core.agreement.schedules import make_schedule, run_in_memory
from coreg_core.agreement.schedules.schedule import Stop, Terms, overall_stop
from coreg_core.agreement.views import KernelExpansion, Solution, View, make_view
from coreg_core.errors import BadData
from coreg_core.estimators._inputs import Estimator, all_or_nothing, one_a_view, warn_of_rounds
from coreg_core.estimators._parameters import by_preset, check_parameters
from coreg_core.estimators._views import Dealt, ViewsRegressor
from coreg_core.kernels.bases import SPAN_TOLERANCE, EveryPoint, LabelledPoints, Span
from coreg_core.kernels.functions import Kernel, make_kernel
from coreg_core.kernels.leave_one_out import kernel_rule
from coreg_core.numerics.arrays import Arr

_SAFE_EXPONENT = 200  # targets within 2^±200 have squares, and squares of their rounding, that are normal numbers


class Fitted(NamedTuple):
    """The views' functions and how they were found."""

    solutions: list[Solution]
    certificate: Certificate
    n_rounds: int
    stop: Stop


class ViewData(NamedTuple):
    """One view as it is trained: labels in the units of the fit."""

    kernel: Kernel
    X: Arr
    y: Arr
    Z: Arr
    ridge: float


class CoRLSR(ViewsRegressor, Estimator):
    r"""$\min_f \sum_v [\|y_v - f_v(X_v)\|^2 + \nu_v\|f_v\|^2] + \lambda \sum_{u,v} \|f_u(Z) - f_v(Z)\|^2$.

    The targets are less their mean a, which predictions contain (``fit_intercept``). Columns are not standardised: use
    `StandardScaler` if their units differ. Several views need shared rows: rows with a missing
    target, or ``Z_views``.

    Source: Brefeld et al. (2006), Definitions 3.1 (exact) and 3.2 (semi-parametric); solvers: docs/research/mathematics.md.

    Parameters
    ----------
    form
        "exact" (f_v over kernels at X_v ∪ Z) or "semi-parametric" (over kernels at X_v).
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)), "laplacian", "polynomial" or "linear".
    views
        columns of each view (slices, positions, booleans or names) of one table; for a list of views it is not needed. A
        column can be in several views. Columns in no view are not used, and with names not read.
    preset
        the defaults of bandwidth, ridge and fit_intercept: "loo" is "loo", "loo" and True; "paper" is "paper", "paper" and
        False, the setting of Brefeld et al.
    bandwidth
        σ: "paper", "median", "loo" (leave-one-out on the view's own labels), a positive number, or a sequence of
        these, one a view. None: by the preset.
    ridge
        ν: "paper", "loo", a positive number, or a sequence, one a view. None: by the preset.
    fit_intercept
        subtract a, the mean of all labels, and add it back. None: by the preset.
    coupling
        λ ≥ 0. Each ordered pair of views counts once, so each pair counts twice.
    solver
        "direct" (the closed form, also for repeated rows), "stacked" (the paper's own system, which raises an error
        when it is singular), "conjugate-gradients", "block-coordinate-descent" (the paper's Algorithm 1).
    tol
        stop when the certified gap Q − Q* is at most tol · Σ‖y_v‖² ...
    prediction_tol
        ... and the certified error of every view's predictions on Z (2-norm) at most this;
        None: 1e-9 · max|y|. A fit with 1e-4 · max|y| is many times faster where kernels are ill-conditioned.
    max_rounds
        most rounds; sweeps for Algorithm 1.
    degree
        of the polynomial kernel.
    offset
        of the polynomial kernel.
    rank_tolerance
        τ: the semi-parametric span keeps the eigenvectors of K(X_v, X_v) with eigenvalues above τ times the largest.

    Attributes
    ----------
    predictions_unlabelled_
        (M, m).
    objective_
        Q at the models, of targets less a. disagreement_: its last sum, without λ.
    n_rounds_
        rounds taken (0 for the closed forms). stop_: how they ended, a `Stop`.
    gap_, prediction_bound_
        certified: Q − Q* ≤ gap_, and ‖ŷ_v − ŷ_v*‖₂ ≤ prediction_bound_ for every v, in exact arithmetic; rounding
        adds about 16 eps times the predictions' norm.
    rank_
        the dimension of each view's span, M numbers.
    functions_
        the views' kernel expansions, without a. bandwidth_, ridge_: the values in use, M each. intercept_: a.
    feature_names_in_views_
        column names of each view, if fitted with a list of data frames; predictions need the same order.

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
        preset: str = "loo",
        bandwidth: str | float | Sequence[str | float] | None = None,
        ridge: str | float | Sequence[str | float] | None = None,
        fit_intercept: bool | None = None,
        coupling: float = 0.01,
        solver: str = "direct",
        tol: float = 1e-10,
        prediction_tol: float | None = None,
        max_rounds: int = 10_000,
        degree: int = 3,
        offset: float = 1.0,
        rank_tolerance: float = SPAN_TOLERANCE,
    ):
        self.views = views
        self.form, self.kernel, self.preset = form, kernel, preset
        self.bandwidth, self.ridge, self.fit_intercept = bandwidth, ridge, fit_intercept
        self.coupling, self.solver, self.tol, self.prediction_tol = coupling, solver, tol, prediction_tol
        self.max_rounds, self.degree, self.offset = max_rounds, degree, offset
        self.rank_tolerance = rank_tolerance

    @all_or_nothing
    def fit(self, X_views: Any, y: Any = None, Z_views: Sequence[Any] | None = None, *, label_mask: Any = None) -> Self:
        """Fit every view together, from a list of views or from one table.

        Parameters
        ----------
        X_views
            M labelled tables (n_v, d_v); or, without ``Z_views``, one table (N, p) with columns split by ``views``, or M
            tables (N, d_v) of the same rows.
        y
            M target vectors (n_v,), or one (n,) when all views have the same labelled instances. Without ``Z_views``:
            targets (N,), NaN where missing; those rows are the unlabelled instances.
        Z_views
            M tables (m, d_v): the same m unlabelled instances, in the same order.
        label_mask
            without ``Z_views``: (N, M) booleans, whether view v sees the label of row i. None: all views see all labels. It
            has no effect on rows without a target.

        Raises
        ------
        BadData
            inconsistent shapes, or values that are not finite; the message names the view.
        UsageError
            a parameter out of range, or a rule without a value for these rows.
        SingularSystem
            solver="stacked" on data for which the paper's system is singular.
        """
        check_parameters(self)
        data = self._data(self._split(X_views, y, Z_views, label_mask))
        views = self._views(data)
        fit, unit = self._solve(data, views), self._unit
        predictions = np.array([s.prediction for s in fit.solutions])
        self.functions_: list[KernelExpansion] = [_times(s.function, unit) for s in fit.solutions]
        self.predictions_unlabelled_ = unit * predictions + self.intercept_
        self.objective_ = (
            objective([s.local_objective for s in fit.solutions], predictions, self.coupling) * unit * unit
        )
        self.disagreement_ = disagreement(predictions) * unit * unit
        # A bound that underflows is not 0.
        least = float(np.nextafter(0.0, 1.0)) if unit < 1.0 else 0.0
        self.gap_ = max(fit.certificate.gap * unit * unit, least * (fit.certificate.gap > 0.0))
        self.prediction_bound_ = fit.certificate.prediction_bound * unit
        self.n_rounds_, self.stop_ = fit.n_rounds, fit.stop
        warn_of_rounds(self.stop_, self.max_rounds)
        self.rank_ = np.array([view.rank for view in views])
        self.ridge_ = np.array([d.ridge for d in data])
        return self

    def predict_views(self, X_views: Any) -> Any:
        """Every view's prediction, (M, n)."""
        tables = self._tables(X_views)
        return self.intercept_ + np.array([f.predict(X) for f, X in zip(self.functions_, tables, strict=True)])

    def predict_view(self, view: int, X: Any) -> Any:
        """The view's own prediction, from the view's columns alone, (n,). ``X``: an array or a data frame."""
        table = self._of_view(view, X)
        return self.intercept_ + self.functions_[view].predict(table)

    def predict(self, X_views: Any) -> Any:
        """The mean of the views' predictions, (n,)."""
        return self.predict_views(X_views).mean(axis=0)

    # --- the parts of fit -----------------------------------------------------------------------------------------

    def _data(self, dealt: Dealt) -> list[ViewData]:
        if without := [v for v, y in enumerate(dealt.y) if not len(y)]:
            raise BadData(
                f"view {without[0]}: no labelled row, and each view needs one here. AdditiveRegressor does not."
            )
        bandwidth, ridge, with_intercept = by_preset(self)
        self.intercept_ = float(np.concatenate(dealt.y).mean()) if with_intercept else 0.0
        self._unit = _unit_of(dealt.y)
        ys, M = [(y - self.intercept_) / self._unit for y in dealt.y], len(dealt.y)
        rules = [
            kernel_rule(X, y, self.kernel, b, r, degree=self.degree, offset=self.offset)
            for X, y, b, r in zip(
                dealt.X, ys, one_a_view(bandwidth, M, "bandwidth"), one_a_view(ridge, M, "ridge"), strict=True
            )
        ]
        self.bandwidth_, resolved = np.array([sigma for sigma, _ in rules]), [nu for _, nu in rules]
        kernels = [
            make_kernel(self.kernel, bandwidth=float(b), degree=self.degree, offset=self.offset)
            for b in self.bandwidth_
        ]
        return [ViewData(*parts) for parts in zip(kernels, dealt.X, ys, dealt.Z, resolved, strict=True)]

    def _views(self, data: list[ViewData]) -> list[View]:
        span: Span = EveryPoint() if self.form == "exact" else LabelledPoints()
        return [make_view(span, d.kernel, d.X, d.y, d.Z, d.ridge, rank_tolerance=self.rank_tolerance) for d in data]

    def _solve(self, data: list[ViewData], views: list[View]) -> Fitted:
        terms = self._terms(data, views)
        match self.solver:
            case "direct":
                solutions, certificate = self._at(views, consensus_closed_form(views, self.coupling), terms)
                return Fitted(solutions, certificate, 0, _judged(terms, certificate))
            case "stacked":
                return self._stacked(data, views, terms)
            case _:
                return self._rounds(views, terms)

    def _terms(self, data: list[ViewData], views: list[View]) -> Terms:
        largest = max(float(np.abs(d.y).max()) for d in data)
        return Terms(
            coupling=(float(self.coupling),),
            bounds=tuple(view.bound() for view in views),
            initial_objective=sum(float(d.y @ d.y) for d in data),
            tolerance=self.tol,
            prediction_tolerance=1e-9 * largest
            if self.prediction_tol is None
            else float(self.prediction_tol) / self._unit,
            max_rounds=self.max_rounds,
        )

    def _at(self, views: list[View], z: Arr, terms: Terms) -> tuple[list[Solution], Certificate]:
        """The views' answers at z, with their certificate."""
        weight = consensus_weight(self.coupling, len(views))
        solutions = [view.solve(z, weight) for view in views]
        mean = np.mean([s.prediction for s in solutions], axis=0)
        scale = float(np.linalg.norm(z) + np.linalg.norm(mean))
        bounds = np.array(terms.bounds)
        return solutions, consensus_certificate(float(np.linalg.norm(mean - z)), scale, weight, bounds)

    def _stacked(self, data: list[ViewData], views: list[View], terms: Terms) -> Fitted:
        exact = self.form == "exact"
        textbook = [textbook_view(d.kernel, d.X, d.y, d.Z, d.ridge, exact=exact) for d in data]
        coefs = solve_stacked(textbook, self.coupling)
        predictions = np.array([t.U @ c for t, c in zip(textbook, coefs, strict=True)])
        # The textbook solution answers no query. At its mean the views do, and what it is off them is added to the bound.
        at_mean, stated = self._at(views, predictions.mean(axis=0), terms)
        off = max(float(np.linalg.norm(p - s.prediction)) for p, s in zip(predictions, at_mean, strict=True))
        solutions = [
            Solution(KernelExpansion(d.kernel, t.points, c), p, _local_objective(d, t.points, c))
            for d, t, c, p in zip(data, textbook, coefs, predictions, strict=True)
        ]
        certificate = Certificate(stated.gap, stated.prediction_bound + off)
        return Fitted(solutions, certificate, 0, _judged(terms, certificate))

    def _rounds(self, views: list[View], terms: Terms) -> Fitted:
        schedule = make_schedule(self.solver, terms)
        state = run_in_memory(schedule, views)
        models, progress = schedule.models(state), schedule.progress(state)
        assert models is not None
        assert progress is not None
        weight = float(models.weights[0])
        targets = [np.ascontiguousarray(models.of(v)[:, 0]) for v in range(len(views))]
        solutions = [view.solve(target, weight) for view, target in zip(views, targets, strict=True)]
        stop = overall_stop(progress.stops)
        assert stop is not None, "it has ended"
        certificate = Certificate(float(progress.gap[0]), float(progress.prediction_bound[0]))
        return Fitted(solutions, certificate, progress.round, stop)


def _local_objective(data: ViewData, points: Arr, coef: Arr) -> float:
    """‖y − f(X)‖² + ν‖f‖² of f = k(·, points) coef."""
    residual = data.y - data.kernel(data.X, points) @ coef
    return float(residual @ residual + data.ridge * (coef @ (data.kernel(points, points) @ coef)))


def _unit_of(ys: list[Arr]) -> float:
    """A power of two near the largest target if squares of targets could underflow or overflow; else 1."""
    largest = max((float(np.abs(y).max(initial=0.0)) for y in ys), default=0.0)
    exponent = int(np.frexp(largest)[1])
    return 1.0 if largest == 0.0 or abs(exponent) <= _SAFE_EXPONENT else float(np.ldexp(1.0, exponent))


def _times(f: KernelExpansion, unit: float) -> KernelExpansion:
    if unit == 1.0:
        return f
    return replace(f, coef=f.coef * unit)


def _judged(terms: Terms, certificate: Certificate) -> Stop:
    """The stop of a closed form, which no round can improve."""
    met = terms.met_by(certificate.gap, certificate.prediction_bound)
    return Stop.CONVERGED if met else Stop.STAGNATED
