"""Parameters that several estimators have: their limits, and what they stand for."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from coreg_core.errors import UsageError
from coreg_core.numerics.threads import one_thread

F = TypeVar("F", bound=Callable[..., Any])

POSITIVE, NOT_NEGATIVE = Interval(Real, 0, None, closed="neither"), Interval(Real, 0, None, closed="left")
COUNT, COUNT_OR_0 = Interval(Integral, 1, None, closed="left"), Interval(Integral, 0, None, closed="left")
KERNELS = StrOptions({"gaussian", "laplacian", "polynomial", "linear"})
RULES = StrOptions({"paper", "median"})  # of a bandwidth
VIEWS = [list, tuple, None]
SMALL = 1000
"""Rows up to which a fit has one BLAS thread. More save it less than a second, and on busy cores cost a factor of 20."""
_PRESETS = {"loo": ("loo", "loo", True), "paper": ("paper", "paper", False)}


def fit_context(fit: F) -> F:
    """scikit-learn's check of the parameters before a fit; a fit of at most `SMALL` rows has one BLAS thread."""

    @wraps(fit)
    def limited(self: Any, *given: Any, **named: Any) -> Any:
        X = next(iter((*given, *named.values())), ())
        tables = X if isinstance(X, (list, tuple)) else [X]
        small = fit.__name__ == "fit" and all((getattr(table, "shape", ()) or (0,))[0] <= SMALL for table in tables)
        with one_thread() if small else nullcontext():
            return fit(self, *given, **named)

    checked: F = _fit_context(prefer_skip_nested_validation=True)(limited)
    return checked


def by_preset(estimator: Any) -> tuple[Any, Any, bool]:
    """Bandwidth, ridge and whether there is an intercept: the given values, and the preset's where they are None."""
    given = (estimator.bandwidth, estimator.ridge, estimator.fit_intercept)
    bandwidth, ridge, intercept = (
        default if value is None else value for value, default in zip(given, _PRESETS[estimator.preset], strict=True)
    )
    return bandwidth, ridge, bool(intercept)


def polynomial(estimator: Any) -> dict[str, Any]:
    """The parameters of a polynomial kernel."""
    return {"degree": estimator.degree, "offset": estimator.offset}


def one_a_view(value: Any, n_views: int, name: str) -> list[Any]:
    """One value for all views, or one each; raises `UsageError` for another number of them."""
    if isinstance(value, str) or np.ndim(value) == 0:
        return [value] * n_views
    if len(value) != n_views:
        raise UsageError(f"{name}: {len(value)} values for {n_views} views; give one for all, or one each.")
    return list(value)


def generator(random_state: Any) -> np.random.Generator:
    """numpy's Generator from scikit-learn's convention: an int gives the same draws, None fresh ones."""
    return np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
