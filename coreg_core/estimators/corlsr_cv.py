"""Folds over the labelled rows, and CoRLSR with the coupling chosen on them: one factorisation a fold for a whole path."""

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.model_selection import KFold, StratifiedKFold, check_cv

from coreg_core.agreement.closed_form import solved
from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData, UsageError
from coreg_core.estimators.corlsr import CoRLSR
from coreg_core.estimators.inputs import as_array, deal, fit_context, missing_in, read_mask
from coreg_core.kernels import SPAN_TOLERANCE


class LabelledFolds(KFold):  # type: ignore[misc]  # scikit-learn ships no types
    """K folds of the labelled rows. All rows with a missing target stay in each training set, and in no test set.

    Use it as ``cv`` of GridSearchCV, cross_val_score or cross_validate. The default folds would test on rows without a target,
    and would train without the shared rows. Two classes are in equal shares in all folds, if each has as many rows as there are
    folds. Parameters are those of `sklearn.model_selection.KFold`.

    Raises
    ------
    BadData
        (a ValueError) without targets, or with fewer labelled rows than folds.

    >>> import numpy as np
    >>> y = np.array([1.0, np.nan, 2.0, np.nan, 3.0])
    >>> [(train.tolist(), test.tolist()) for train, test in LabelledFolds(3).split(y[:, None], y)]
    [([2, 4, 1, 3], [0]), ([0, 4, 1, 3], [2]), ([0, 2, 1, 3], [4])]
    """

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Ints, Ints]]:  # noqa: ARG002
        """Row numbers of each training set and of each test set."""
        if groups is not None:
            raise UsageError("LabelledFolds takes no groups. Give cv a list of pairs: training rows and test rows.")
        if y is None:
            raise BadData("LabelledFolds needs y: its missing targets say which rows are unlabelled.")
        y = as_array(y)
        missing = missing_in(y)
        labelled, unlabelled = np.flatnonzero(~missing), np.flatnonzero(missing)
        if len(labelled) < self.n_splits:
            raise BadData(f"{len(labelled)} labelled rows are too few for {self.n_splits} folds: each needs one.")
        known = y[labelled]
        classes = list(dict.fromkeys(known.tolist()))
        folds = super().split(labelled)
        numbers = [classes.index(value) for value in known.tolist()] if len(classes) == 2 else []
        if numbers and np.bincount(numbers).min() >= self.n_splits:
            state = self.random_state if self.shuffle else None
            alike = StratifiedKFold(self.n_splits, shuffle=self.shuffle, random_state=state)
            folds = alike.split(labelled, numbers)
        for train, test in folds:
            yield np.concatenate([labelled[train], unlabelled]), labelled[test]


COUPLINGS = (0.0, *np.logspace(-5.0, 0.0, 11).tolist())


class CoRLSRCV(CoRLSR):
    r"""`CoRLSR` with the coupling λ of least cross-validated squared error of the views' mean.

    Folds are of labelled rows; each training set has all unlabelled rows. A fold factors its views once and solves for every λ in
    closed form. Widths and ridges are chosen anew in each fold.

    Source: Brefeld et al. (2006), Definitions 3.1 and 3.2; the one-standard-error rule: Breiman et al. (1984), section 3.4.3.

    Parameters
    ----------
    couplings
        λ ≥ 0 to choose from. 0 is each view alone.
    cv
        number of folds of the labelled rows (at most one for each), or a splitter. Each training set gets the unlabelled
        rows that a splitter omits, and each test set loses its own.
    one_standard_error
        choose the smallest λ whose error is at most one standard error (over the folds) above the least one.
    views, form, kernel, preset, bandwidth, ridge, fit_intercept, solver, tol, prediction_tol, max_rounds
        those of `CoRLSR`, as is rank_tolerance. The solver is for the last fit.

    Attributes
    ----------
    coupling_
        the chosen λ. couplings_: all of them, ascending.
    errors_
        mean squared error of each λ in each fold, (n_couplings, n_folds).
    gap_, prediction_bound_, objective_, disagreement_, n_rounds_, stop_, rank_, functions_, bandwidth_, ridge_, intercept_
        those of `CoRLSR` at the chosen λ, fitted to all rows.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> latent = rng.normal(size=200)
    >>> X = latent[:, None] + rng.normal(size=(200, 4))
    >>> y = np.where(np.arange(200) < 30, latent, np.nan)
    >>> model = CoRLSRCV(views=[slice(0, 2), slice(2, 4)]).fit(X, y)
    >>> model.coupling_ in model.couplings_, model.errors_.shape
    (True, (12, 5))
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **CoRLSR._parameter_constraints, "couplings": ["array-like"], "cv": ["cv_object"],
        "one_standard_error": ["boolean"],
    }  # fmt: skip

    def __init__(
        self,
        *,
        couplings: Sequence[float] = COUPLINGS,
        cv: Any = 5,
        one_standard_error: bool = False,
        views: Any = None,
        form: str = "exact",
        kernel: str = "gaussian",
        preset: str = "loo",
        bandwidth: str | float | Sequence[str | float] | None = None,
        ridge: str | float | Sequence[str | float] | None = None,
        fit_intercept: bool | None = None,
        solver: str = "closed-form",
        tol: float = 1e-10,
        prediction_tol: float | None = None,
        max_rounds: int = 10_000,
        rank_tolerance: float = SPAN_TOLERANCE,
    ):
        self.couplings, self.cv, self.one_standard_error = couplings, cv, one_standard_error
        self.views, self.form, self.kernel, self.preset = views, form, kernel, preset
        self.bandwidth, self.ridge, self.fit_intercept = bandwidth, ridge, fit_intercept
        self.solver, self.tol, self.prediction_tol, self.max_rounds = solver, tol, prediction_tol, max_rounds
        self.rank_tolerance = rank_tolerance

    @property
    def coupling(self) -> float:  # type: ignore[override]
        """The chosen λ, for the fit of `CoRLSR`."""
        return float(self.coupling_)

    @fit_context
    def fit(self, X: Any, y: Any = None, *, label_mask: Any = None) -> Self:  # type: ignore[override]
        """Choose λ by folds, then fit all rows.

        Parameters
        ----------
        X
            one table (N, p) with columns split by ``views``. A fold predicts rows from the columns of all views.
        y
            targets (N,), NaN where missing; those rows are the unlabelled instances.
        label_mask
            (N, M) booleans, whether view v sees the label of row i. None: all views see all labels.
        """
        self.couplings_ = grid = np.unique(np.asarray(self.couplings, dtype=np.float64))
        if not grid.size or not (np.isfinite(grid).all() and grid[0] >= 0.0):
            raise UsageError(f"couplings={self.couplings!r}: give finite numbers of at least 0.")
        self.coupling_ = float(grid[0])
        tables = self._one_table(X, reset=True)
        targets = self._targets(y, len(tables[0]))
        mask = None if label_mask is None else read_mask(label_mask, (len(targets), len(tables)))
        errors = []
        for k, (train, test) in enumerate(self._folds(targets, mask), 1):
            try:
                errors.append(self._path(tables, targets, mask, train, test))
            except BadData as error:
                raise BadData(f"fold {k}: {error} Use fewer folds, or other ones.") from None
        self.errors_: Arr = np.array(errors).T
        self.coupling_ = float(grid[self._best()])
        return super().fit(X, y, label_mask=label_mask)

    def _folds(self, targets: Arr, mask: Any) -> list[tuple[Any, Any]]:
        """Rows of each training set, with all unlabelled rows, and labelled rows of each test set that a view may see."""
        seen = ~np.isnan(targets) if mask is None else ~np.isnan(targets) & mask.any(axis=1)
        labelled, unlabelled = np.flatnonzero(seen), np.flatnonzero(np.isnan(targets))
        if len(labelled) < 2:
            raise BadData(f"y: {len(labelled)} labelled row (1 sample); cross-validation needs two.")
        if self.cv is not None and not isinstance(self.cv, Integral):
            given = check_cv(self.cv, targets).split(targets[:, None], targets)
            pairs = [(np.union1d(train, unlabelled), test[seen[test]]) for train, test in given]
        elif mask is None:
            pairs = list(LabelledFolds(min(self.cv or 5, len(labelled))).split(targets[:, None], targets))
        else:  # rows that the same views see are in equal shares in all folds
            k = min(self.cv or 5, len(labelled))
            order = labelled[np.lexsort(mask[labelled].T)]
            fold = np.full(len(targets), -1)
            fold[order] = np.arange(len(order)) % k
            pairs = [(np.flatnonzero(fold != j), np.flatnonzero(fold == j)) for j in range(k)]
        if any(len(test) == 0 for _, test in pairs):
            raise BadData("cv: a test set without a labelled row. LabelledFolds divides the labelled rows.")
        return pairs

    def _path(self, tables: list[Arr], targets: Arr, mask: Any, train: Any, test: Any) -> list[float]:
        """The mean squared error of the test rows for each λ."""
        part = [table[train] for table in tables]
        seen = np.ones((len(train), len(tables)), dtype=bool) if mask is None else mask[train]
        views, _ = self._views(deal(part, targets[train], seen))
        out = []
        for coupling in self.couplings_:
            solutions = solved(views, float(coupling))
            found = np.mean([s.predict(table[test]) for s, table in zip(solutions, tables, strict=True)], axis=0)
            out.append(float(np.mean((targets[test] - self.intercept_ - found) ** 2)))
        return out

    def _best(self) -> int:
        mean = self.errors_.mean(axis=1)
        least = int(mean.argmin())
        if not self.one_standard_error:
            return least
        n_folds = self.errors_.shape[1]
        spread = self.errors_[least].std(ddof=1) if n_folds > 1 else 0.0
        allowed = mean[least] + spread / np.sqrt(n_folds)
        return int(np.flatnonzero(mean <= allowed)[0])
