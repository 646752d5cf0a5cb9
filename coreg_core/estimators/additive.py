r"""Additive views: sites or views with different columns learn parts that add up, by second moments
and in closed form.
"""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from coreg_core.additive.check import Verdict
from coreg_core.additive.features import SiteRows
from coreg_core.additive.label_privacy import columns_of
from coreg_core.additive.training import TrainedFederation, train
from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData
from coreg_core.estimators.parameters import COUNT, VIEWS, fit_context, generator
from coreg_core.estimators.targets import Regressor, ViewsClassifier
from coreg_core.estimators.views import MultiView, read_mask, warn_of_rows
from coreg_core.evaluation import AnyProbability, fit_class_probabilities, fit_probability
from coreg_core.objectives.additive import IN_MEMORY, Additive

FEW = 10  # labels
# A slope further from 1 is not chance: of 20 honest sites one has another than 1. It is 0 where the
# columns do not predict the labels, or their sign differs.
CLEAR = 2.0


class AdditiveViews(MultiView, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """The parameters, the fit and the predictions of both estimators below."""

    trained_: Any
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "views": VIEWS, "kernel": [StrOptions({"gaussian", "linear"})], "rows_per_feature": [COUNT],
        "random_state": ["random_state"],
    }  # fmt: skip

    def __init__(
        self,
        *,
        views: Any = None,
        kernel: str = "gaussian",
        rows_per_feature: int = 8,
        random_state: Any = 0,
    ):
        self.views = views
        self.kernel = kernel
        self.rows_per_feature = rows_per_feature
        self.random_state = random_state

    @fit_context
    def fit(self, X: Any, y: Any = None, *, label_mask: Any = None) -> Self:
        """Fit one table.

        Parameters
        ----------
        X
            one table (N, p) with columns split by ``views``. Cells of a row that a view does not
            have are NaN, all of them.
        y
            targets (N,), NaN where unknown.
        label_mask
            (N, M) booleans: whether view v owns the label of row i. None: one owner has all labels.
            To estimate what a federation would bring, give each site its own labels.
        """
        tables, present = self._present(X, reset=True)
        targets = self._targets(y, len(present))
        one_owner = label_mask is None
        has_target = ~np.isnan(targets)
        common = present.all(axis=1)
        mask = read_mask(label_mask, present.shape)
        odd = np.flatnonzero(has_target & ~common)
        if one_owner and odd.size:
            raise BadData(
                f"row {odd[0] + 1} (counted from 1) has a target, and a view does not have the row."
                " Give label_mask, so that the label has an owner."
            )
        owns = has_target[:, None] & present & mask
        warn_of_rows(self.views, has_target, has_target & ~owns.any(axis=1))
        if not common.any():
            raise BadData(
                "no row has the columns of every view. At least one is needed, and some hundreds"
                " are better."
            )
        places = np.flatnonzero(common)
        at = np.cumsum(common) - 1
        sites = []
        # Common rows stand first, in the same order everywhere.
        for table, mine in zip(tables, owns.T, strict=True):
            inner = np.flatnonzero(mine & common)
            private = np.flatnonzero(mine & ~common)
            rows = np.concatenate([places, private])
            own: Ints = np.concatenate([at[inner], np.arange(len(places), len(rows))])
            y = targets[np.concatenate([inner, private])]
            sites.append(SiteRows(table[rows], own, y))
        seed = int(generator(self.random_state).integers(2**31 - 1))
        self.trained_ = train(
            sites, len(places), seed=seed, rules=self._rules(), one_owner=one_owner
        )
        self.verdicts_ = [self._of_site(site.verdicts) for site in self.trained_.sites]
        self.labels_ = [site.y for site in sites]
        self._warn_of_slopes()
        few = [str(v) for v, site in enumerate(sites) if 0 < len(site.y) < FEW]
        if few:
            warnings.warn(
                f"fewer than {FEW} labels at view {' and '.join(few)}: what the verdict recommends"
                " there is chance.",
                stacklevel=4,
            )
        return self

    def _warn_of_slopes(self) -> None:
        """Labels of another unit make a sum that is of no view's unit."""
        for v, site in enumerate(self.trained_.sites):
            slopes = [
                f"{verdict.slope:.3g}"
                for verdict in site.verdicts
                if 0.0 < verdict.slope <= 1.0 / CLEAR or verdict.slope >= CLEAR
            ]
            if slopes:
                warnings.warn(
                    f"view {v}: its labels against its left-out predictions have a slope of"
                    f" {', '.join(slopes)}, so they may have another unit than those of other"
                    " views.",
                    stacklevel=5,
                )

    def _rules(self) -> Additive:
        return replace(
            IN_MEMORY,
            kernel=self.kernel,  # type: ignore[arg-type]  # checked by scikit-learn
            rows_per_feature=self.rows_per_feature,
        )

    def _of_site(self, verdicts: tuple[Verdict, ...]) -> Any:
        """What `verdicts_` has of a view."""
        return verdicts[0]

    def _present(self, X: Any, *, reset: bool = False) -> tuple[list[Arr], Any]:
        """Tables of all views (N, d_v), and which view has which row (N, M)."""
        tables = self._one_table(X, reset=reset, gaps=True)
        present = np.array([~np.isnan(table).all(axis=1) for table in tables]).T
        for v, table in enumerate(tables):
            odd = np.argwhere(np.isnan(table) & present[:, v, None])
            if odd.size:
                row, column = odd[0].tolist()
                positions = np.arange(1, self.n_features_in_ + 1)
                names = getattr(self, "feature_names_in_", positions)
                label = names[self.columns_[v][column]]
                raise BadData(
                    f"view {v}, row {row + 1} (counted from 1): a part of its cells is NaN, in"
                    f" column {label!s}. Fill missing values first, for example with"
                    " sklearn.impute.SimpleImputer. A view that does not have a row has NaN in all"
                    " its columns."
                )
        return tables, present

    def _joint(self, X: Any) -> Arr:
        """The score of each row, from the views that have it; a column for each of several
        targets.
        """
        check_is_fitted(self)
        tables, present = self._present(X)
        trained = self.trained_
        out = np.empty((len(present), *_columns(trained)))
        for pattern, rows in _patterns(present):
            out[rows] = trained.score(self._features(tables, pattern, rows))
        return out

    def _features(self, tables: list[Arr], pattern: Any, rows: Ints) -> list[Arr | None]:
        """Each view's features of these rows, None of a view that does not have them."""
        sites = self.trained_.sites
        return [
            site.model.phi(table[rows]) if has else None
            for site, table, has in zip(sites, tables, pattern, strict=True)
        ]

    def _own(self, X: Any) -> Arr:
        """Each view's joined model, (M, n) or (M, n, targets); NaN where the view does not have the
        row.
        """
        check_is_fitted(self)
        tables, present = self._present(X)
        trained = self.trained_
        out = np.full((*present.T.shape, *_columns(trained)), np.nan)
        for v, (table, rows) in enumerate(zip(tables, present.T, strict=True)):
            if rows.any():
                out[v, rows] = trained.sites[v].model.predict(table[rows])
        return out


def _patterns(present: Any) -> Iterator[tuple[Any, Ints]]:
    """Each set of views that have a row, and the rows of that set."""
    patterns, which = np.unique(present, axis=0, return_inverse=True)
    for j, pattern in enumerate(patterns):
        rows = np.flatnonzero(which.reshape(-1) == j)
        if not pattern.any():
            raise BadData(f"row {rows[0] + 1} (counted from 1): no view has it.")
        yield pattern, rows


def _columns(trained: TrainedFederation) -> tuple[int, ...]:
    """The last axis of predictions of several targets."""
    if len(trained.fits) > 1:
        return (len(trained.fits),)
    return ()


class AdditiveRegressor(Regressor, AdditiveViews):
    r"""Several sites or views with different columns train one model: the target is the sum of
    their parts.

    $y = a + \mathrm{offset}_{owner} + \sum_v \varphi_v(x_v)\cdot\beta_v + \varepsilon$ with
    $\beta_v \sim N(0, \tau_v I)$. Each view has d features φ_v of its columns: kernel principal
    components, with the functions of its local model as two more directions. The fit needs second
    moments of the features only: ΦᵀΦ and Φᵀy over labelled rows, and the mean of φφᵀ over all rows
    that every view has. Variances are chosen by the evidence; everything is in closed form.

    `predict` scores together, from the columns of all views. Where a view has no record of a row
    (NaN in all its columns), the score is the expected one given the other views. `predict_scores`
    has each view's score as its own labels correct it: the gains of a verdict are of this one.
    `predict_views` has each view's joined model, which needs its own columns only: its part, and
    what its columns say of the others' parts, blended with its local model by its own left-out
    labels.

    Source: docs/research/mathematics.md, "Second moments". What to expect:
    docs/research/benefit.md.

    Parameters
    ----------
    views
        columns of each view (slices, positions, booleans or names) of one table; None: all columns
        are one view. A name or a position alone is a view of one column. Columns in no view are not
        used, and with names not read.
    kernel
        "gaussian", on columns that are standardised and clipped at ±4, or "linear": ridge
        regression on all columns.
    rows_per_feature
        labelled rows for each of the d features of a view; d is at most 30.
    random_state
        seed of the landmarks and the forests.

    Attributes
    ----------
    trained_
        the fit, and each view's features, local model, joined model and verdict.
    verdicts_
        for each view: ``recommended`` ("local", "joined" or "score"), ``gains`` with the forecast
        change of the error and its standard error, ``slope`` (not 1: the labels may have another
        unit or sign) and left-out residuals.
    labels_
        each view's labels, in the order of these residuals.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(120, 4))
    >>> y = np.sin(X[:, 0]) + X[:, 3] ** 2
    >>> y[40:] = np.nan  # missing targets: these rows are the shared ones
    >>> mask = np.zeros((120, 2), dtype=bool)
    >>> mask[:20, 0] = mask[20:40, 1] = True  # each view has twenty labels of its own
    >>> model = AdditiveRegressor(views=[slice(0, 2), slice(2, 4)], random_state=0)
    >>> model = model.fit(X, y, label_mask=mask)
    >>> model.predict(X).shape, model.predict_scores(X).shape, model.predict_views(X).shape
    ((120,), (2, 120), (2, 120))
    """

    def predict(self, X: Any) -> Arr:
        """The score that all views have in common, (n,), from the columns of the views that have
        the row; offsets count by their labels. No view's verdict corrects it (`predict_scores`).
        """
        return self._joint(X)

    def predict_scores(self, X: Any) -> Arr:
        """Each view's score, (M, n), as its verdict corrects and judges it: slope, refinement, and
        the blend with its local model. NaN where the view does not have the row.
        """
        check_is_fitted(self)
        tables, present = self._present(X)
        scores = np.full(present.T.shape, np.nan)
        for pattern, rows in _patterns(present):
            features = self._features(tables, pattern, rows)
            for v in np.flatnonzero(pattern).tolist():
                scores[v, rows] = self.trained_.site_score(v, features, tables[v][rows])
        return scores

    def predict_view(self, view: int, X: Any) -> Arr:
        """The joined model of a view, from its columns alone, (n,).

        ``X``: an array or a data frame.
        """
        table = self._of_view(view, X)
        joined: Arr = self.trained_.sites[view].model.predict(table)
        return joined

    def predict_local(self, view: int, X: Any) -> Arr | None:
        """The local model of a view, as `predict_view`; None for a view with fewer than three
        labels.
        """
        table = self._of_view(view, X)
        local: Arr | None = self.trained_.sites[view].model.alone(table)
        return local

    def predict_views(self, X: Any) -> Arr:
        """Each view's joined model, (M, n); NaN where the view does not have the row."""
        return self._own(X)


class AdditiveClassifier(ViewsClassifier, AdditiveViews):
    r"""`AdditiveRegressor` on labels of 0 and 1, with $p = 1/(1 + e^{-(A s + B)})$ of its scores s;
    of K > 2 classes on whether the label is each one, with $p_k \propto e^{A s_k + B_k}$.

    A and B are fitted to predictions of labelled rows that were left out in turn (Platt scaling, of
    several classes its multinomial form): for each view's joined model, and for the score from the
    labels of all views.

    Source: docs/research/mathematics.md, "Second moments"; Platt (1999).

    Parameters
    ----------
    views, kernel, rows_per_feature, random_state
        those of `AdditiveRegressor`.

    Attributes
    ----------
    classes_
        the classes, sorted; of two, probabilities are of the second.
    probability_, probabilities_
        A and B of the score, and of each view's joined model.
    trained_, verdicts_, labels_
        those of `AdditiveRegressor`, of labels 0 and 1; of several classes ``verdicts_`` has a list
        for each view, with an entry for each class, and ``labels_`` places of classes.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(150, 4))
    >>> y = np.where(X[:, 0] + X[:, 3] > 0, "yes", "no").astype(object)
    >>> y[80:] = None  # missing targets: these rows are the shared ones
    >>> mask = np.zeros((150, 2), dtype=bool)
    >>> mask[:40, 0] = mask[40:80, 1] = True  # each view has forty labels of its own
    >>> model = AdditiveClassifier(views=[slice(0, 2), slice(2, 4)], random_state=0)
    >>> model = model.fit(X, y, label_mask=mask)
    >>> model.classes_.tolist(), model.predict_proba(X).shape, model.predict_proba_views(X).shape
    (['no', 'yes'], (150, 2), (2, 150))
    """

    _several = True

    def _rules(self) -> Additive:
        """With a target for each class, if there are more than two."""
        if len(self.classes_) == 2:
            return super()._rules()
        places = map(str, range(len(self.classes_)))
        return replace(super()._rules(), classes=tuple(places))

    def _of_site(self, verdicts: tuple[Verdict, ...]) -> Any:
        if len(verdicts) == 1:
            return super()._of_site(verdicts)
        return list(verdicts)

    @fit_context
    def fit(self, X: Any, y: Any = None, *, label_mask: Any = None) -> Self:
        """As `AdditiveRegressor.fit`. A missing target is NaN or None."""
        super().fit(X, y, label_mask=label_mask)
        self.probabilities_ = []
        scores = []
        labels = []
        for v, own in enumerate(self.labels_):
            joined = self._left_out(v, "joined")
            self.probabilities_.append(self._calibrated(joined, own[: len(joined)]))
            score = self._left_out_sums(v)
            if not len(score):
                score = joined
            scores.append(score)
            labels.append(own[: len(score)])
        self.probability_ = self._calibrated(np.concatenate(scores), np.concatenate(labels))
        return self

    def _left_out(self, view: int, model: str) -> Arr:
        """Left-out predictions of a view's labels, (n, targets); of no row where it has none."""
        verdicts = self.trained_.sites[view].verdicts
        return self._predicted(view, [v.left_out.get(model, np.zeros(0)) for v in verdicts])

    def _left_out_sums(self, view: int) -> Arr:
        """The same of the score that `predict_proba` is of, which no verdict corrects."""
        verdicts = self.trained_.sites[view].verdicts
        left = [np.zeros(0) if v.uncorrected is None else v.uncorrected for v in verdicts]
        return self._predicted(view, left)

    def _predicted(self, view: int, left: list[Arr]) -> Arr:
        """Labels less these residuals, of as many rows as each target has."""
        n = min(map(len, left))
        labels = columns_of(self.labels_[view][:n], self._rules().classes)
        residuals = np.stack([of_target[:n] for of_target in left], axis=1)
        return np.asarray(labels - residuals)

    def _calibrated(self, scores: Arr, labels: Arr) -> AnyProbability:
        """A and B of left-out scores; those of the prior without any."""
        if scores.shape[1] > 1:
            return fit_class_probabilities(scores, labels)
        return fit_probability(scores[:, 0], labels)
