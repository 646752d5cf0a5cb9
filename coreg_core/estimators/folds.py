"""Folds over the labelled rows, for the searches of scikit-learn."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.model_selection import KFold, StratifiedKFold

from coreg_core.arrays import Ints
from coreg_core.errors import BadData, UsageError
from coreg_core.estimators.tables import as_array, missing_in


class LabelledFolds(KFold):  # type: ignore[misc]  # scikit-learn ships no types
    """K folds of the labelled rows.

    All rows with a missing target stay in each training set, and in no test set.

    Use it as ``cv`` of GridSearchCV, cross_val_score or cross_validate. The default folds would
    test on rows without a target, and would train without the shared rows. Two classes are in equal
    shares in all folds, if each has as many rows as there are folds. Parameters are those of
    `sklearn.model_selection.KFold`.

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
            raise UsageError(
                "LabelledFolds takes no groups. Give cv a list of pairs: training rows and test"
                " rows."
            )
        if y is None:
            raise BadData(
                "LabelledFolds needs y: its missing targets say which rows are unlabelled."
            )
        y = as_array(y)
        missing = missing_in(y)
        labelled = np.flatnonzero(~missing)
        unlabelled = np.flatnonzero(missing)
        if len(labelled) < self.n_splits:
            raise BadData(
                f"{len(labelled)} labelled rows are too few for {self.n_splits} folds: each needs"
                " one."
            )
        targets = y[labelled]
        classes = list(dict.fromkeys(targets.tolist()))
        folds = super().split(labelled)
        numbers = []
        if len(classes) == 2:
            numbers = [classes.index(value) for value in targets.tolist()]
        if numbers and np.bincount(numbers).min() >= self.n_splits:
            state = self.random_state if self.shuffle else None
            alike = StratifiedKFold(self.n_splits, shuffle=self.shuffle, random_state=state)
            folds = alike.split(labelled, numbers)
        for train, test in folds:
            yield np.concatenate([labelled[train], unlabelled]), labelled[test]
