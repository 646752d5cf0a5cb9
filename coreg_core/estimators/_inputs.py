"""Input handling that several estimators share, beyond scikit-learn's own checks."""

import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from difflib import get_close_matches
from functools import wraps
from inspect import isfunction, signature
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning, UndefinedMetricWarning
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from coreg_core.agreement.schedules.schedule import Stop
from coreg_core.errors import BadData, UsageError
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.threads import one_thread

F = TypeVar("F", bound=Callable[..., Any])


_METHODS = (
    "__init__", "fit", "partial_fit", "predict", "predict_view", "predict_views", "predict_proba", "predict_proba_views",
    "decision_function", "score",
)  # fmt: skip
_BETWEEN = ("coreg_core", "coreg_federation", "jaxtyping", "sklearn", "joblib")  # callers that are not the user's
LARGEST = 1e150  # of a number: squares of larger ones overflow
SMALL = 1000
"""Rows up to which a fit has one BLAS thread. More save it less than a second, and on busy cores cost a factor of 20."""


def _named(method: F) -> F:
    """A wrong argument is reported under the public class, with the nearest argument."""
    known = signature(method)

    @wraps(method)
    def called(self: Any, *given: Any, **named: Any) -> Any:
        try:
            known.bind(self, *given, **named)
        except TypeError as error:
            strange = next((argument for argument in named if argument not in known.parameters), "")
            close = get_close_matches(strange, known.parameters, 1)
            hint = f". Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{type(self).__name__}.{method.__name__}() {error}{hint}") from None
        return method(self, *given, **named)

    called.names_arguments = True  # type: ignore[attr-defined]
    return called  # type: ignore[return-value]


class Estimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """The base of all estimators: each public method reports a wrong argument as `_named` does."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name in _METHODS:
            method = getattr(cls, name, None)
            if isfunction(method) and not hasattr(method, "names_arguments"):
                setattr(cls, name, _named(method))


def all_or_nothing(fit: F) -> F:
    """A fit that fails keeps the old model. A fit of at most `SMALL` rows has one BLAS thread."""

    @wraps(fit)
    def kept(self: Any, *given: Any, **named: Any) -> Any:
        before = dict(self.__dict__)
        one_each = (
            table for each in (*given, *named.values()) for table in (each if isinstance(each, list) else [each])
        )
        shapes: list[Any] = [getattr(table, "shape", ()) for table in one_each]
        small = all(shape[0] <= SMALL for shape in shapes if len(shape) == 2)
        try:
            with one_thread() if small and fit.__name__ == "fit" else nullcontext():
                return fit(self, *given, **named)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    return kept  # type: ignore[return-value]


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """A warning at the line of the caller of this package, also if scikit-learn or a decorator is between them."""
    depth, frame = 1, sys._getframe(0)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _BETWEEN:
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, category, stacklevel=depth)


def warn_of_rounds(stop: Stop | None, max_rounds: int) -> None:
    """Warn of a fit that ended at its limit of rounds."""
    if stop is Stop.MAX_ROUNDS:
        text = f"The fit ended at max_rounds={max_rounds} and has not converged. Raise max_rounds. The attribute stop_ tells."
        warn(text, ConvergenceWarning)


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


def checked_targets(y: Any, n_rows: int, estimator: Any, least: int = 1) -> Arr:
    """y (N,) as floats, NaN where it is missing; all of them can be missing if ``least`` is 0.

    Raises
    ------
    BadData
        no y, another length, infinite, not numeric, or missing everywhere.
    """
    name = type(estimator).__name__
    if y is None:
        raise BadData(f"This {name} estimator requires y to be passed, but the target y is None.")
    if np.asarray(y).dtype.kind in "mM":  # else numpy would count nanoseconds
        raise BadData("y: dates or durations. Convert them to numbers first, for example to days.")
    try:
        targets = np.asarray(column_or_1d(y, warn=True), dtype=np.float64)
        check_consistent_length(targets, np.zeros(n_rows))
    except (TypeError, ValueError) as error:
        if np.asarray(y).dtype.kind in "OUS" and len(np.shape(y)) == 1:
            text = next((value for value in np.asarray(y).tolist() if isinstance(value, str)), None)
            raise BadData(
                f"y: {error if text is None else f'{text!r} is no number'}. For a target of two classes use a classifier, for "
                "example AdditiveClassifier."
            ) from None
        raise BadData(f"y: {str(error).removeprefix('y ').rstrip('.')}.") from None
    if np.isinf(targets).any():
        raise BadData("Input y contains infinity or a value too large; leave a target that is not known missing (NaN).")
    if (largest := np.nanmax(np.abs(targets), initial=0.0)) > LARGEST:
        raise BadData(
            f"y: values up to {largest:.0e} are too large for squares of their differences. Divide y by a constant."
        )
    if least and np.isnan(targets).all():
        raise BadData(
            "All targets are NaN. Some rows need a target. In GridSearchCV and "
            "cross_val_score, set cv to LabelledFolds."
        )
    return targets


def refuse_texts_and_gaps(X: Any, where: str = "", *, gaps: bool = True) -> None:
    """Name the columns of a data frame that are no finite numbers, or the first such cell of an array; raises `BadData`.

    Without ``gaps`` a missing value is no fault.
    """
    texts, empty, infinite = list[str](), list[str](), list[str]()
    if hasattr(X, "collect"):
        raise BadData(f"{where}a lazy frame: call .collect() first.")
    for name in getattr(X, "columns", ()):
        try:
            values = np.asarray(X[name])
            if values.dtype.kind in "mM":  # else dates would be counts of nanoseconds
                raise TypeError
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            texts.append(repr(name))
            continue
        if gaps and np.isnan(values).any():
            empty.append(repr(name))
        elif np.isinf(values).any():
            infinite.append(repr(name))
    if (
        isinstance(X, np.ndarray)
        and X.ndim == 2
        and X.dtype.kind == "f"
        and (cell := np.argwhere(~np.isfinite(X) if gaps else np.isinf(X))[:1]).size
    ):
        row, column = cell[0].tolist()
        missing = bool(np.isnan(X[row, column]))
        todo = (
            "Fill missing values first, for example with sklearn.impute.SimpleImputer."
            if missing
            else "Replace it by a number, or drop the row."
        )
        what = f"{'NaN' if missing else 'infinity'} at row {row + 1} column {column + 1} (counted from 1)"
        raise BadData(f"{where}Input X contains {what}. {todo}")
    if texts:
        raise BadData(
            f"{where}not numeric: {', '.join(texts)}. Encode texts as 0/1 columns and dates as numbers, or drop the columns. "
            "If `views` has names, columns in no view are not read."
        )
    if empty:
        raise BadData(f"{where}empty cells: {', '.join(empty)}. Fill them first, for example with the column's mean.")
    if infinite:
        raise BadData(f"{where}infinity: {', '.join(infinite)}. Replace it by numbers, or drop the rows.")


def split_rows(
    estimator: Any, X: Any, y: Any, X_unlabelled: Any = None, *, least: int = 1, reset: bool = True
) -> tuple[Arr, Arr, Arr]:
    """Labelled rows (n, d), their targets (n,) (of a classifier −1 and 1), and unlabelled rows (m, d).

    Unlabelled are the rows of X with a missing target, and then those of X_unlabelled.

    Raises
    ------
    BadData
        an invalid table or target.
    """
    refuse_texts_and_gaps(X)
    X = validate_data(estimator, X, dtype=np.float64, order="C", ensure_min_samples=least, reset=reset)
    to_numbers = getattr(estimator, "signs_and_gaps", None)
    targets = checked_targets(y, len(X), estimator) if to_numbers is None else to_numbers(y, len(X))
    more = X[:0] if X_unlabelled is None else unlabelled_rows(estimator, X_unlabelled)
    if (missing := np.isnan(targets)).any():
        more = np.concatenate([X[missing], more]) if len(more) else X[missing]
        X, targets = X[~missing], targets[~missing]
    return X, targets, more


def one_a_view(value: Any, n_views: int, name: str) -> list[Any]:
    """One value for all views, or one each.

    Raises
    ------
    UsageError
        another number of them.
    """
    parts = [value] if isinstance(value, str) or np.ndim(value) == 0 else list(value)
    if any(
        isinstance(part, bool) or not isinstance(part, (str, int, float, np.integer, np.floating)) for part in parts
    ):
        raise UsageError(f"{name}={value!r}: give a number or a rule for all views, or one each.")
    if isinstance(value, str) or np.ndim(value) == 0:
        return [value] * n_views
    if len(value) != n_views:
        raise UsageError(f"{name}: {len(value)} values for {n_views} views; give one for all, or one each.")
    return list(value)


def missing_in(y: Any) -> Any:
    """Which targets are missing: NaN, None or pandas.NA."""
    return np.array([_absent(value) for value in np.asarray(as_objects(y)).tolist()], dtype=bool)


def as_objects(y: Any) -> Any:
    """A list as an array of objects: numpy would write NaN among texts as the text "nan". Nullable integers stay integers."""
    if getattr(getattr(y, "dtype", None), "na_value", None) is not None and hasattr(y, "to_numpy"):
        return y.to_numpy(dtype=object)
    if isinstance(y, (list, tuple)) and any(isinstance(value, str) for value in y):
        return np.array(y, dtype=object)
    return y


def _absent(value: Any) -> bool:
    try:
        return value is None or bool(value != value)  # NaN is not itself
    except TypeError:  # pandas.NA is neither
        return True


def _no_score() -> float:
    text = "No row has a target, so the score is NaN. In a search or a cross-validation give cv=LabelledFolds()."
    warn(text, UndefinedMetricWarning)
    return float("nan")


class Regressor(RegressorMixin):  # type: ignore[misc]  # scikit-learn ships no types
    """`score` over the rows with a target."""

    predict: Any

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of `predict` over the rows whose target is not missing; NaN where none is known."""
        targets = np.asarray(column_or_1d(y), dtype=np.float64)
        known = ~np.isnan(targets)
        if not known.any():
            return _no_score()
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(r2_score(targets[known], self.predict(X)[known], sample_weight=weight))


class TwoClasses:
    """Two classes as −1 and 1: the sign of `decision_function` decides. Stands before scikit-learn's ClassifierMixin."""

    classes_: Any
    _decide: Any  # (X) -> (n,), of the class beside this one

    def _signs(self, y: Any, classes: Any = None) -> Arr:
        """Sets ``classes_``, sorted; y as −1 and 1.

        Raises
        ------
        BadData
            one class, or more than two; or a label that is none of ``classes``.
        """
        if len(y):
            check_classification_targets(y)
        classes = np.unique(y) if classes is None else classes
        if len(classes) > 2:
            raise BadData(
                f"Only binary classification is supported. The type of the target is {type_of_target(y)}: "
                f"{len(classes)} classes. A row without a label has y = NaN, not -1. For a numeric target use a regressor."
            )
        if len(classes) < 2:
            raise BadData(
                f"y: one class ({classes.tolist()[0]!r}) and a classifier needs two; label rows of the other."
            )
        if (strange := ~np.isin(y, classes)).any():
            raise BadData(f"y: {str(y[strange][0])!r} is none of the classes {classes.tolist()}.")
        self.classes_ = classes
        return np.where(y == classes[1], 1.0, -1.0)

    def signs_and_gaps(self, y: Any, n_rows: int | None = None, classes: Any = None) -> Arr:
        """y as −1 and 1, NaN where it is missing (NaN or None). Sets ``classes_``.

        Raises
        ------
        BadData
            no y, another length, infinite, or other than two classes.
        """
        if y is None:
            raise BadData(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        y = np.asarray(column_or_1d(as_objects(y), warn=True))
        if n_rows is not None:
            check_consistent_length(y, np.zeros(n_rows))
        missing = missing_in(y)
        known, out = y[~missing], np.full(len(y), np.nan)
        if known.dtype.kind == "f" and np.isinf(known).any():
            raise BadData("Input y contains infinity or a value too large; classes are finite.")
        if len(known) or classes is not None:
            known = np.array(known.tolist()) if y.dtype == object else known
            out[~missing] = self._signs(known, classes)
        elif n_rows != 0:
            raise BadData("All targets are NaN, so no class is known.")
        return out

    def decision_function(self, X: Any) -> Any:
        """f(X), (n,): positive for the second class."""
        return self._decide(X)

    def predict(self, X: Any) -> Any:
        """The class of each row, (n,)."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict` over the rows whose target is not missing; NaN where none is known."""
        y = np.asarray(column_or_1d(as_objects(y)))
        known = ~missing_in(y)
        if not known.any():
            return _no_score()
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        right = y[known].astype(object) == self.predict(X)[known].astype(object)
        return float(np.average(right, weights=weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.classifier_tags.multi_class = False
        return tags
