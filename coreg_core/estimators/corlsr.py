r"""Co-regularised least squares regression over any number of views, by three solvers of one
problem.
"""

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions

from coreg_core.agreement.closed_form import consensus_closed_form
from coreg_core.agreement.left_out import LabelledFit
from coreg_core.agreement.objective import (
    Certificate,
    consensus_certificate,
    consensus_weight,
    disagreement,
    objective,
    sweep_weight,
)
from coreg_core.agreement.solver import SolverTerms, Stop, overall_stop
from coreg_core.agreement.solvers import SOLVER_NAMES, make_solver, run_in_memory
from coreg_core.agreement.views import KernelExpansion, Solution, View, make_view
from coreg_core.arrays import Arr
from coreg_core.errors import BadData
from coreg_core.estimators.parameters import (
    COUNT,
    KERNELS,
    NOT_NEGATIVE,
    POSITIVE,
    VIEWS,
    fit_context,
    one_a_view,
)
from coreg_core.estimators.targets import Regressor, ViewsClassifier
from coreg_core.estimators.views import Dealt, MultiView
from coreg_core.evaluation import fit_probability
from coreg_core.kernels import Kernel, make_kernel
from coreg_core.selection import kernel_rule
from coreg_core.spans import EveryPoint, LabelledPoints

SOLVERS = ("closed-form", *SOLVER_NAMES)
_PRESETS = {"loo": ("loo", "loo", True), "paper": ("paper", "paper", False)}


def by_preset(estimator: Any) -> tuple[Any, Any, bool]:
    """Bandwidth, ridge and whether there is an intercept: the given values, and the preset's where
    they are None.
    """
    bandwidth, ridge, intercept = _PRESETS[estimator.preset]
    if estimator.bandwidth is not None:
        bandwidth = estimator.bandwidth
    if estimator.ridge is not None:
        ridge = estimator.ridge
    if estimator.fit_intercept is not None:
        intercept = bool(estimator.fit_intercept)
    return bandwidth, ridge, intercept


Fitted: TypeAlias = tuple[list[Solution], Certificate, int, Stop]  # with the number of rounds


class CoRLSR(MultiView, Regressor):
    r"""$\min_f \sum_v [\|y_v - f_v(X_v)\|^2 + \nu_v\|f_v\|^2] + \lambda \sum_{u,v} \|f_u(Z) -
    f_v(Z)\|^2$.

    The targets are less their mean a, which predictions contain (``fit_intercept``). Columns are
    not standardised: use `StandardScaler` if their units differ. Several views need shared rows:
    rows with a missing target.

    Source: Brefeld et al. (2006), Definitions 3.1 (exact) and 3.2 (semi-parametric); solvers:
    docs/research/mathematics.md.

    Parameters
    ----------
    form
        "exact" (f_v over kernels at X_v ∪ Z) or "semi-parametric" (over kernels at X_v).
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)) or "linear".
    views
        columns of each view (slices, positions, booleans or names) of the table; None: all columns
        are one view. A column can be in several views. Columns in no view are not used, and with
        names not read.
    preset
        the defaults of bandwidth, ridge and fit_intercept: "loo" is "loo", "loo" and True; "paper"
        is "paper", "paper" and False, the setting of Brefeld et al.
    bandwidth
        σ: "paper", "median", "loo" (leave-one-out on the view's own labels), a positive number, or
        a sequence of these, one a view. None: by the preset.
    ridge
        ν: "paper", "loo", a positive number, or a sequence, one a view. None: by the preset.
    fit_intercept
        subtract a, the mean of all labels, and add it back. None: by the preset.
    coupling
        λ ≥ 0. Each ordered pair of views counts once, so each pair counts twice.
    solver
        "closed-form", "conjugate-gradients" or "block-coordinate-descent" (the paper's Algorithm
        1).
    tol
        stop when the certified gap Q − Q* is at most tol · Σ‖y_v‖² ...
    prediction_tol
        ... and the certified error of every view's predictions on Z (2-norm) at most this;
        None: 1e-9 · max|y|. A fit with 1e-4 · max|y| is many times faster where kernels are
        ill-conditioned.
    max_rounds
        most rounds; sweeps for Algorithm 1.

    Attributes
    ----------
    predictions_unlabelled_
        (M, m).
    objective_
        Q at the models, of targets less a. disagreement_: its last sum, without λ.
    n_rounds_
        rounds taken (0 for the closed forms). stop_: how they ended, a `Stop`.
    gap_, prediction_bound_
        certified: Q − Q* ≤ gap_, and ‖ŷ_v − ŷ_v*‖₂ ≤ prediction_bound_ for every v, in exact
        arithmetic; rounding adds about 16 eps times the predictions' norm.
    rank_
        the dimension of each view's span, M numbers.
    functions_
        the views' kernel expansions, without a. bandwidth_, ridge_: the values in use, M each.
        intercept_: a.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(70, 4))
    >>> y = X.sum(axis=1)
    >>> y[20:] = np.nan  # missing targets: these rows are the shared ones
    >>> model = CoRLSR(views=[slice(0, 2), slice(2, 4)], coupling=0.01).fit(X, y)
    >>> model.predict(X).shape, model.predict_views(X).shape
    ((70,), (2, 70))
    """

    functions_: list[KernelExpansion]
    intercept_: float
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "views": VIEWS, "form": [StrOptions({"exact", "semi-parametric"})], "kernel": [KERNELS],
        "preset": [StrOptions({"loo", "paper"})],
        "bandwidth": [StrOptions({"paper", "median", "loo"}), POSITIVE, "array-like", None],
        "ridge": [StrOptions({"paper", "loo"}), POSITIVE, "array-like", None],
        "fit_intercept": ["boolean", None],
        "coupling": [NOT_NEGATIVE], "solver": [StrOptions({*SOLVERS})], "tol": [POSITIVE],
        "prediction_tol": [POSITIVE, None], "max_rounds": [COUNT],
    }  # fmt: skip

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
        solver: str = "closed-form",
        tol: float = 1e-10,
        prediction_tol: float | None = None,
        max_rounds: int = 10_000,
    ):
        self.views = views
        self.form = form
        self.kernel = kernel
        self.preset = preset
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.fit_intercept = fit_intercept
        self.coupling = coupling
        self.solver = solver
        self.tol = tol
        self.prediction_tol = prediction_tol
        self.max_rounds = max_rounds

    @fit_context
    def fit(self, X: Any, y: Any = None, *, label_mask: Any = None) -> Self:
        """Fit every view together.

        Parameters
        ----------
        X
            one table (N, p) with columns split by ``views``.
        y
            targets (N,), NaN where missing; those rows are the unlabelled instances.
        label_mask
            (N, M) booleans, whether view v sees the label of row i. None: all views see all labels.
            It has no effect on rows without a target.

        Raises
        ------
        BadData
            inconsistent shapes, or values that are not finite; the message names the view.
        UsageError
            a rule without a value for these rows.
        """
        views, ys = self._views(self._dealt(X, y, label_mask))
        solutions, certificate, self.n_rounds_, self.stop_ = self._solve(views, ys)
        predictions = np.array([s.prediction for s in solutions])
        self.functions_ = [s.function for s in solutions]
        self.predictions_unlabelled_ = predictions + self.intercept_
        self.objective_ = objective(
            [s.local_objective for s in solutions], predictions, self.coupling
        )
        self.disagreement_ = disagreement(predictions)
        self.gap_ = certificate.gap
        self.prediction_bound_ = certificate.prediction_bound
        self.rank_ = np.array([view.rank for view in views])
        if self.stop_ is Stop.MAX_ROUNDS:
            text = (
                f"The fit ended at max_rounds={self.max_rounds} and has not converged. Raise"
                " max_rounds."
            )
            warnings.warn(text, ConvergenceWarning, stacklevel=4)
        return self

    def predict_views(self, X: Any) -> Any:
        """Every view's prediction, (M, n)."""
        tables = self._one_table(X)  # which refuses an estimator without a fit
        pairs = zip(self.functions_, tables, strict=True)
        return self.intercept_ + np.array([f.predict(table) for f, table in pairs])

    def predict_view(self, view: int, X: Any) -> Any:
        """The view's own prediction, from the view's columns alone, (n,).

        ``X``: an array or a data frame.
        """
        table = self._of_view(view, X)
        return self.intercept_ + self.functions_[view].predict(table)

    def predict(self, X: Any) -> Any:
        """The mean of the views' predictions, (n,)."""
        return self.predict_views(X).mean(axis=0)

    def _rules(self, Xs: list[Arr], ys: list[Arr]) -> tuple[list[Kernel], list[float]]:
        """Each view's kernel and ridge by the parameters; sets ``bandwidth_``."""
        bandwidth, ridge, _ = by_preset(self)
        sigmas = one_a_view(bandwidth, len(Xs), "bandwidth")
        nus = one_a_view(ridge, len(Xs), "ridge")
        bandwidths = []
        kernels = []
        ridges = []
        for X, y, sigma_rule, nu_rule in zip(Xs, ys, sigmas, nus, strict=True):
            sigma, nu = kernel_rule(X, y, self.kernel, sigma_rule, nu_rule)
            bandwidths.append(sigma)
            kernels.append(make_kernel(self.kernel, bandwidth=sigma))
            ridges.append(nu)
        self.bandwidth_ = np.array(bandwidths)
        return kernels, ridges

    def _views(self, dealt: Dealt) -> tuple[list[View], list[Arr]]:
        """Each view's set-up in its span, factored once, and its labels less a."""
        Xs, targets, Zs = dealt
        without = [v for v, y in enumerate(targets) if not len(y)]
        if without:
            raise BadData(
                f"view {without[0]}: no labelled row, and each view needs one here."
                " AdditiveRegressor does not."
            )
        self.intercept_ = 0.0
        if by_preset(self)[2]:
            self.intercept_ = float(np.concatenate(targets).mean())
        ys = [y - self.intercept_ for y in targets]
        kernels, ridges = self._rules(Xs, ys)
        self.ridge_ = np.array(ridges)
        span = EveryPoint() if self.form == "exact" else LabelledPoints()
        given = zip(kernels, Xs, ys, Zs, ridges, strict=True)
        views = [make_view(span, *of_view) for of_view in given]
        return views, ys

    def _solve(self, views: list[View], ys: list[Arr]) -> Fitted:
        """f_v = argmin ‖y_v − f(X_v)‖² + ν_v‖f‖² + 2λM‖f(Z) − z‖², at the z which is the mean of
        these answers.
        """
        prediction_tolerance = self.prediction_tol
        if prediction_tolerance is None:
            prediction_tolerance = 1e-9 * max(float(np.abs(y).max()) for y in ys)
        terms = SolverTerms(
            coupling=(float(self.coupling),),
            bounds=tuple(view.bound() for view in views),
            initial_objective=sum(float(y @ y) for y in ys),
            tolerance=self.tol,
            prediction_tolerance=prediction_tolerance,
            max_rounds=self.max_rounds,
        )
        if self.solver != "closed-form":
            return _by_rounds(self.solver, terms, views)
        z = consensus_closed_form(views, self.coupling)
        weight = consensus_weight(self.coupling, len(views))
        solutions = [view.solve(z, weight) for view in views]
        mean = np.mean([s.prediction for s in solutions], axis=0)
        residual = float(np.linalg.norm(mean - z))
        scale = float(np.linalg.norm(z) + np.linalg.norm(mean))
        certificate = consensus_certificate(residual, scale, weight, np.array(terms.bounds))
        stop = Stop.STAGNATED
        if terms.met_by(certificate.gap, certificate.prediction_bound):
            stop = Stop.CONVERGED
        return solutions, certificate, 0, stop


def _by_rounds(solver: str, terms: SolverTerms, views: list[View]) -> Fitted:
    """The answers to the targets of the last round."""
    rounds = make_solver(solver, terms)
    state = run_in_memory(rounds, views)
    models = rounds.models(state)
    progress = rounds.progress(state)
    assert models is not None
    assert progress is not None
    stop = overall_stop(progress.stops)
    assert stop is not None, "it has ended"
    weight = float(models.weights[0])
    solutions = []
    for v, view in enumerate(views):
        z = np.ascontiguousarray(models.of(v)[:, 0])
        solutions.append(view.solve(z, weight))
    certificate = Certificate(float(progress.gap[0]), float(progress.prediction_bound[0]))
    return solutions, certificate, progress.round, stop


# without an intercept, labels of ∓½ make "as likely as not" the prediction without any label
_HALF = 0.5


class CoRLSRClassifier(ViewsClassifier, CoRLSR):
    r"""`CoRLSR` on labels of −½ and ½, with $p = 1/(1 + e^{-(A s + B)})$ of its scores s.

    A and B are fitted to predictions of labelled rows that were left out in turn, while the other
    views' mean on the shared rows stays (Platt scaling). Each view has a pair, and the mean of the
    views has one from the rows of all.

    Source: Brefeld et al. (2006); docs/research/mathematics.md, "Leave-one-out on a site's own
    labels"; Platt (1999).

    Parameters
    ----------
    views, form, kernel, preset, bandwidth, ridge, fit_intercept, coupling, solver, tol,
    prediction_tol, max_rounds
        those of `CoRLSR`.

    Attributes
    ----------
    classes_
        the two classes, sorted; probabilities are of the second.
    probability_, probabilities_
        A and B of the mean of the views, and of each view.
    gap_, prediction_bound_, objective_, disagreement_, n_rounds_, stop_, rank_, functions_,
    bandwidth_, ridge_
        those of `CoRLSR`, of the labels −½ and ½.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(150, 4))
    >>> y = np.where(X[:, 0] + X[:, 2] > 0, "yes", "no").astype(object)
    >>> y[40:] = None  # missing targets: these rows are the shared ones
    >>> model = CoRLSRClassifier(views=[slice(0, 2), slice(2, 4)]).fit(X, y)
    >>> model.classes_.tolist(), model.predict_proba(X).shape, model.predict_proba_views(X).shape
    (['no', 'yes'], (150, 2), (2, 150))
    """

    def _targets(self, y: Any, n_rows: int) -> Arr:
        return np.asarray(super()._targets(y, n_rows) - _HALF)

    def _solve(self, views: list[View], ys: list[Arr]) -> Fitted:
        fit = super()._solve(views, ys)
        M = len(views)
        predictions = np.array([s.prediction for s in fit[0]])
        pairs = []
        middle = self.intercept_ + _HALF
        # The intercept is left out with the label where it is the mean of this view's own labels.
        centred = by_preset(self)[2] and all(np.array_equal(y, ys[0]) for y in ys)
        for v, (view, y) in enumerate(zip(views, ys, strict=True)):
            others = (predictions.sum(axis=0) - predictions[v]) / max(M - 1, 1)
            residuals, G = view.on_labels(others, sweep_weight(self.coupling, M))
            errors = LabelledFit(residuals, G, y, centred=centred).left_out
            pairs.append((y - errors + middle, y + middle))
        self.probabilities_ = [fit_probability(*pair) for pair in pairs]
        self.probability_ = fit_probability(*map(np.concatenate, zip(*pairs, strict=True)))
        return fit

    def _joint(self, X: Any) -> Arr:
        return np.asarray(CoRLSR.predict(self, X) + _HALF)

    def _own(self, X: Any) -> Arr:
        return np.asarray(self.predict_views(X) + _HALF)
