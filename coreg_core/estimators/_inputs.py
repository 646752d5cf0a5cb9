"""Input handling that several estimators share, beyond scikit-learn's own checks."""

from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import validate_data

from coreg_core.errors import BadData, UsageError
from coreg_core.numerics.arrays import Arr


def generator(random_state: Any) -> np.random.Generator:
    """numpy's Generator from scikit-learn's convention: an int gives the same draws, None fresh ones."""
    return np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))


def unlabelled_rows(estimator: Any, X_unlabelled: Any) -> Arr:
    """X_unlabelled (m, d), checked against the table of X.

    Raises
    ------
    BadData
        it is invalid; scikit-learn's reason, with the argument's name.
    """
    try:
        rows: Arr = validate_data(estimator, X_unlabelled, dtype=np.float64, order="C", reset=False)
    except ValueError as error:
        raise BadData(f"X_unlabelled: {error}") from None
    return rows


def one_a_view(value: Any, n_views: int, name: str) -> list[Any]:
    """One value for all views, or one each.

    Raises
    ------
    UsageError
        another number of them.
    """
    if isinstance(value, str) or np.ndim(value) == 0:
        return [value] * n_views
    if len(value) != n_views:
        raise UsageError(f"{name}: {len(value)} values for {n_views} views; give one for all, or one each.")
    return list(value)


def missing_in(y: Any) -> Any:
    """Which targets are missing: NaN, None or pandas.NA."""
    return np.array([_absent(value) for value in np.asarray(y).tolist()], dtype=bool)


def _absent(value: Any) -> bool:
    try:
        return value is None or bool(value != value)  # NaN is not itself
    except TypeError:  # pandas.NA is neither
        return True


class TwoClasses:
    """Two classes as −1 and 1: the sign of `decision_function` decides. Stands before scikit-learn's ClassifierMixin."""

    classes_: Any
    _decide: Any  # (X) -> (n,), of the class beside this one

    def _signs(self, y: Any) -> Arr:
        """Sets ``classes_``, sorted; y as −1 and 1.

        Raises
        ------
        BadData
            one class, or more than two.
        """
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) > 2:
            raise BadData(
                f"Only binary classification is supported. The type of the target is {type_of_target(y)}: "
                f"{len(self.classes_)} classes."
            )
        if len(self.classes_) < 2:
            raise BadData(f"y: one class ({self.classes_[0]!r}) and a classifier needs two; label rows of the other.")
        return np.where(y == self.classes_[1], 1.0, -1.0)

    def decision_function(self, X: Any) -> Any:
        """f(X), (n,): positive for the second class."""
        return self._decide(X)

    def predict(self, X: Any) -> Any:
        """The class of each row, (n,)."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.classifier_tags.multi_class = False
        return tags
