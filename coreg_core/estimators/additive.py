r"""Additive views: sites or views with different columns learn parts that add up, over sums on the shared instances."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from coreg_core.additive.forecast import Forecast
from coreg_core.additive.model.expansion import SiteModel
from coreg_core.additive.model.grouping import ResidualPolicy
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.reference.in_memory import run_in_memory
from coreg_core.additive.site import AdditiveSite
from coreg_core.additive.training import Training
from coreg_core.agreement.schedules.schedule import Stop
from coreg_core.errors import BadData, UsageError
from coreg_core.estimators._inputs import (
    LARGEST,
    Estimator,
    all_or_nothing,
    generator,
    missing_in,
    warn,
    warn_of_rounds,
)
from coreg_core.estimators._parameters import check_parameters
from coreg_core.estimators._views import ViewsRegressor, ViewTables
from coreg_core.numerics.arrays import Arr, as_vector
from coreg_core.numerics.threads import one_thread

# All views are in one process and the parameter names its disclosure, so the caller consents for every site.
_ALLOWED = ResidualPolicy(grouped_at_least=3, open_residuals=True)
_EVERY_LABEL = (
    "Every view sees all labels, because label_mask is missing or all true. In a federation each site sees only its own. Give "
    "label_mask (rows by views), or rows='common' if the sites really have the same labelled rows."
)


class AdditiveViews(ViewTables, Estimator):
    """The parameters, the fit and the scores of both estimators below."""

    ridge_by_rule = True

    def __init__(
        self,
        *,
        views: Any = None,
        kernel: str = "gaussian",
        bandwidth: str | float = "loo",
        ridge: str | float = "loo",
        landmarks: int = 100,
        rows: str = "private",
        residuals: str = "smoothed",
        group_size: int = 3,
        random_intercept: float = 0.1,
        aim: str = "mean",
        tuning_steps: int = 6,
        probes: int = 16,
        tol: float = 1e-5,
        tuning_tol: float = 1e-3,
        folds: int = 5,
        max_rounds: int = 200,
        forecast: bool = False,
        random_state: Any = 0,
    ):
        self.views, self.kernel, self.bandwidth, self.ridge = views, kernel, bandwidth, ridge
        self.landmarks = landmarks
        self.rows, self.residuals, self.group_size = rows, residuals, group_size
        self.random_intercept, self.aim = random_intercept, aim
        self.tuning_steps, self.probes, self.tol, self.tuning_tol = tuning_steps, probes, tol, tuning_tol
        self.folds, self.max_rounds, self.forecast, self.random_state = folds, max_rounds, forecast, random_state

    @all_or_nothing
    def fit(
        self,
        X: Any,
        y: Any = None,
        Z_views: Sequence[Any] | None = None,
        *,
        label_mask: Any = None,
        positions: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Fit one table, or a list of views.

        Parameters
        ----------
        X
            one table (N, p), or M tables (N, d_v) of the same rows; with ``Z_views``, M labelled tables (n_v, d_v).
        y
            targets (N,). Set the targets of shared rows to NaN. With ``rows="common"`` all rows are shared, labelled ones
            too; also if no target is NaN and every view sees all labels. With ``Z_views``, M target vectors (n_v,); an empty
            one is a view without labels.
        Z_views
            M tables (m, d_v): the same shared instances, in the same order.
        label_mask
            one table: (N, M) booleans, whether view v sees the label of row i. None: all views see all labels. It has no
            effect on rows without a target. To estimate what a federation would bring, give each site its own labels: with
            all labels at every view, the models alone are better than those of real sites.
        positions
            list of views with common rows: the position of each labelled row among the shared ones, M vectors of
            integers.
        sample_weight
            how much each label counts, (N,) numbers of at least 0; with ``Z_views``, M vectors (n_v,). A label of weight ω has
            the noise σ²/ω, and one of weight 0 is not used. Weights of rows without a target have no effect. Each view divides
            its weights by their mean.
        """
        terms = self._terms()
        common = terms.rows == "common"
        if positions is not None and (Z_views is None or not common):
            raise UsageError('positions= is for lists of views with Z_views and rows="common".')
        dealt = self._split(X, y, Z_views, label_mask, all_shared=True if common else None, least=int(Z_views is None))
        Xs, ys, Zs, where = dealt.X, dealt.y, dealt.Z, dealt.rows
        if (largest := max(float(max(t.max(initial=0.0), -t.min(initial=0.0))) for t in (*Xs, *Zs))) > LARGEST:
            raise BadData(
                f"X: values up to {largest:.0e} are too large for their squares. Divide such columns by a constant."
            )
        weights: list[Any] = [None] * len(Xs)
        if sample_weight is not None:
            if where is None:
                weights = _checked_weights(sample_weight, ys, [f"sample_weight[{v}]" for v in range(len(Xs))])
            else:
                [vector] = _checked_weights([sample_weight], [y], ["sample_weight"])
                weights = [vector[rows] for rows in where]
        if where is None:
            where = _places(positions, ys, len(Zs[0])) if common else None
        elif not common and len(Xs) > 1 and all(np.array_equal(rows, where[0]) for rows in where):
            warn(_EVERY_LABEL)
        places: list[Any] = where if common and where is not None else [None] * len(Xs)
        if sample_weight is not None:  # a label of weight 0 is not used; the shared rows stay
            parts = zip(Xs, ys, places, weights, strict=True)
            used = [(X[w > 0], y[w > 0], None if p is None else p[w > 0], w[w > 0]) for X, y, p, w in parts]
            Xs, ys, places, weights = map(list, zip(*used, strict=True))
        width = len(str(len(Xs)))
        sites = [
            AdditiveSite(X, y, Z, terms, name=f"view {v:0{width}d}", positions=p, policy=_ALLOWED, weights=w)
            for v, (X, y, Z, p, w) in enumerate(zip(Xs, ys, Zs, places, weights, strict=True))
        ]
        with one_thread():  # as a site of the service has by default
            self._train(terms, sites, len(Zs[0]))
        warn_of_rounds(self.stop_, self.max_rounds)
        return self

    def _terms(self) -> Additive:
        check_parameters(self)
        return Additive(
            kernel=self.kernel,  # type: ignore[arg-type]  # checked just above
            bandwidth=self.bandwidth if isinstance(self.bandwidth, str) else float(self.bandwidth),  # type: ignore[arg-type]
            ridge=self.ridge if isinstance(self.ridge, str) else float(self.ridge),  # type: ignore[arg-type]
            landmarks=self.landmarks,
            seed=int(generator(self.random_state).integers(2**31 - 1)),
            rows=self.rows,  # type: ignore[arg-type]
            residuals=self.residuals,  # type: ignore[arg-type]
            group_size=self.group_size,
            random_intercept=float(self.random_intercept),
            aim=self.aim,  # type: ignore[arg-type]
            tuning_steps=self.tuning_steps,
            probes=self.probes,
            tolerance=self.tuning_tol,
            final_tolerance=self.tol,
            folds=self.folds,
            max_rounds=self.max_rounds,
        )

    def _train(self, terms: Additive, sites: list[AdditiveSite], n_unlabelled: int) -> None:
        training = Training(terms)
        state = run_in_memory(training, training.start(n_unlabelled), sites)
        mean, deviation = state.units.tolist()
        self.models_: list[SiteModel] = [site.model for site in sites if site.model is not None]
        self.labels_ = [site.labels for site in sites]
        self.intercept_ = mean + deviation * float(state.x[-1, 0])
        s = state.x[:n_unlabelled, 0]
        self.score_unlabelled_ = self.intercept_ + deviation * s
        noise, prior = state.operator.tolist()
        hypers = [site.hypers[state.step].times(noise, prior) for site in sites]
        self.noise_, self.prior_ = np.array([h.noise for h in hypers]), np.array([h.prior for h in hypers])
        self.r2_ = np.array([site.smoother.r2 if site.smoother else 0.0 for site in sites])
        certificate = training.certificate(state)
        self.gap_, self.score_bound_ = certificate.gap, deviation * certificate.score_bound
        self.n_rounds_, self.n_exchanges_ = state.rounds, state.exchanges
        self.stop_: Stop | None = training.stop(state)
        self.__dict__.pop("forecast_", None)  # of an earlier fit
        if self.forecast:
            schedule = Forecast.of(terms, state)
            self.forecast_ = run_in_memory(schedule, schedule.start(n_unlabelled), sites).gain
            if not np.isfinite(self.forecast_):
                warn("forecast_ is NaN: the views have too few labels to leave some out.")

    # --- predictions --------------------------------------------------------------------------------------------------

    def _joint(self, X: Any) -> Arr:
        """a + Σ_v h_v(x_v)."""
        tables = self._tables(X)
        parts = [model.part.predict(table) for model, table in zip(self.models_, tables, strict=True)]
        return np.asarray(self.intercept_ + np.sum(parts, axis=0))

    def _own(self, X: Any) -> Arr:
        tables = self._tables(X)
        return np.array([model.own.predict(table) for model, table in zip(self.models_, tables, strict=True)])


def _checked_weights(weights: Any, ys: Sequence[Any], names: Sequence[str]) -> list[Arr]:
    """One vector for each of the target vectors; a weight of a missing target becomes 1, since it has no effect."""
    if len(weights) != len(ys):
        raise BadData(f"sample_weight: {len(weights)} vectors for {len(ys)} views; give one for each.")
    found = []
    for each, y, name in zip(weights, ys, names, strict=True):
        targets, given = np.asarray(y).reshape(-1), np.asarray(each)
        missing = missing_in(targets)
        if given.shape != targets.shape:
            raise BadData(f"{name}: weights of shape {given.shape} for {len(targets)} targets.")
        vector = as_vector(np.where(missing, 1.0, given), name)
        known = vector[~missing]
        if (known < 0.0).any() or (len(known) and not known.any()):
            raise BadData(f"{name}: needs a number of at least 0 for each target, and one that is not zero.")
        found.append(vector)
    return found


def _places(positions: Any, ys: list[Arr], m: int) -> list[Any]:
    """The place of each labelled row among the m shared ones."""
    if positions is None or len(positions) != len(ys):
        raise UsageError(
            'rows="common" needs positions=, a vector of integers a view: where its labelled rows stand in Z.'
        )
    where = [np.asarray(p, dtype=np.int64).reshape(-1) for p in positions]
    for v, (p, targets) in enumerate(zip(where, ys, strict=True)):
        if len(p) != len(targets) or len(set(p.tolist())) != len(p) or (len(p) and not 0 <= p.min() <= p.max() < m):
            raise BadData(f"positions[{v}]: {len(targets)} different rows of the {m} shared ones are needed.")
    return where


class AdditiveRegressor(ViewsRegressor, AdditiveViews):
    r"""Several sites or views with different columns train one model each; the target is the sum of their parts.

    `predict` scores together, from the columns of all views: a + Σ h_v(x_v), with h_v the part of view v. `predict_views` has
    each view's own model: its part, plus what its columns predict of the others' parts. `predict_view` needs the columns of one
    view alone. Columns are standardised. The fit uses the messages of the service, which are sums of vectors on the shared rows.

    Each view has the model y_v = a + a_v + h_v(X_v) + S_v Σ_{u≠v} h_u(Z) + ε_v. The smoother S_v predicts the others' parts from
    the view's columns, without labels. With s = Σ Z_v w_v and N_v = σ_v²I + κ11ᵀ the fit minimises
    $\sum_v r_v^\top N_v^{-1} r_v + \sum_v \tau_v^{-2}\|w_v\|^2 + a^2/c$, $r_v = y_v - a - \Psi_v w_v - S_v s$. Noise and priors
    maximise the evidence.

    If every view has the *same* labelled rows (``label_mask=None``), ``rows="common"`` tunes the joint score by folds. For the
    views' own models "private" is as good (docs/concepts/methods.md).

    Source: docs/research/mathematics.md, "The additive objective". What to expect: docs/research/benefit.md.

    Parameters
    ----------
    views
        columns of each view (slices, positions, booleans or names) of one table; None: all columns are one view. A name or a
        position alone is a view of one column. Columns in no view are not used, and with names not read.
    kernel
        "gaussian", "laplacian", "polynomial" or "linear", on columns that are standardised and clipped at ±6.
    bandwidth
        σ of exp(−‖x − x'‖²/σ) on the standardised columns (scikit-learn's gamma is 1/σ): a positive number, or "loo"
        (leave-one-out on a view's own labels chooses between two widths, by the distances of its rows).
    ridge
        penalty ν (scikit-learn's alpha) at the start of tuning: "loo" or a positive number.
    landmarks
        maximum number of landmarks (random rows that carry the kernel) of each view.
    rows
        "private", or "common": labelled rows are among the shared ones, and scoring together is tuned by folds.
    residuals
        with common rows, "smoothed", "grouped" (means over groups of labels are exchanged) or "open" (labels are;
        exact additive kernel ridge over all rows and columns).
    group_size
        k of grouped residuals, at least 3.
    random_intercept
        variance of each view's own offset of its labels, in units of the label variance; 0: none. `predict_views` adds the
        offset, `predict` does not.
    aim
        how `predict_views` blends joined and local models by the view's own labels: "mean" for the smallest error on average,
        "safety" for the fewest views that lose.
    tuning_steps
        steps that improve noise and priors; 0 keeps each view's start values.
    probes
        random columns that estimate the traces of these steps.
    tol
        relative tolerance of the final solve; 1e-5 is an error of 1e-3 deviations of the target, or less.
    tuning_tol
        relative tolerance of each tuning step.
    folds
        number of folds, for common rows and for the forecast.
    max_rounds
        maximum number of rounds of one solve. A fit that ends there issues a ConvergenceWarning.
    forecast
        also forecast the change of the views' error by joining (``forecast_``), by cross-validation.
    random_state
        seed of landmarks, probes and folds.

    Attributes
    ----------
    models_
        a `SiteModel` for each view; its ``alone``, ``joined`` and ``own`` (the blend of both) have ``predict``. intercept_: a.
        score_unlabelled_: a + s on the shared rows (m,), in units of y.
    noise_, prior_
        σ² and τ², M each, in units of the federation's variance.
    r2_
        of each view's prediction of the others' score, before any training.
    gap_, score_bound_
        certified: J − J* ≤ gap_, and ‖s̃ − s*‖₂ ≤ score_bound_ in units of y.
    n_rounds_
        exchanges of vectors. n_exchanges_: all of them. stop_: how the final solve ended.
    forecast_
        forecast relative change of the views' error, with ``forecast=True``.

    Raises
    ------
    BadData
        (a ValueError) tables of inconsistent shapes, or values that are not finite.
    UsageError
        (a ValueError) a parameter out of range.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(120, 4))
    >>> y = np.sin(X[:, 0]) + X[:, 3] ** 2
    >>> y[40:] = np.nan  # missing targets: these rows are the shared ones
    >>> mask = np.zeros((120, 2), dtype=bool)
    >>> mask[:20, 0] = mask[20:40, 1] = True  # each view has twenty labels of its own
    >>> model = AdditiveRegressor(views=[slice(0, 2), slice(2, 4)], random_state=0).fit(X, y, label_mask=mask)
    >>> model.predict(X).shape, model.predict_views(X).shape
    ((120,), (2, 120))
    """

    def predict(self, X: Any) -> Any:
        """The joint score a + Σ_v h_v(x_v), (n,), from the columns of every view."""
        return self._joint(X)

    def predict_view(self, view: int, X: Any) -> Arr:
        """The view's own model, from the view's columns alone, (n,). ``X``: an array or a data frame."""
        table = self._of_view(view, X)
        return np.asarray(self.models_[view].own.predict(table))

    def predict_views(self, X: Any) -> Any:
        """Each view's own model, (M, n)."""
        return self._own(X)
