"""Parameters of the estimators: what each may be, and how a fit reads them."""

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
from coreg_core.threads import one_thread

F = TypeVar("F", bound=Callable[..., Any])


POSITIVE = Interval(Real, 0, None, closed="neither")


NOT_NEGATIVE = Interval(Real, 0, None, closed="left")


COUNT = Interval(Integral, 1, None, closed="left")


KERNELS = StrOptions({"gaussian", "linear"})


VIEWS = [list, tuple, None]


SMALL = 1000
"""Rows up to which a fit has one BLAS thread.

More save it less than a second, and on busy cores cost a factor of 20.
"""


def fit_context(fit: F) -> F:
    """scikit-learn's check of the parameters before a fit; a fit of at most `SMALL` rows has one
    BLAS thread.
    """

    @wraps(fit)
    def limited(self: Any, *given: Any, **named: Any) -> Any:
        _refuse_weights(self, named)
        X = next(iter((*given, *named.values())), ())
        small = fit.__name__ == "fit" and (getattr(X, "shape", ()) or (0,))[0] <= SMALL
        with one_thread() if small else nullcontext():
            return fit(self, *given, **named)

    checked: F = _fit_context(prefer_skip_nested_validation=True)(limited)
    return checked


def _refuse_weights(estimator: Any, named: dict[str, Any]) -> None:
    """Some of scikit-learn's tools pass sample_weight=None, which asks for nothing."""
    if named.pop("sample_weight", None) is not None:
        raise UsageError(
            f"sample_weight: {type(estimator).__name__} cannot weight rows; each row with a target"
            " counts once. Leave sample_weight out of fit. `score` takes it."
        )


def one_a_view(value: Any, n_views: int, name: str) -> list[Any]:
    """One value for all views, or one each; raises `UsageError` for another number of them."""
    if isinstance(value, str) or np.ndim(value) == 0:
        return [value] * n_views
    if len(value) != n_views:
        raise UsageError(
            f"{name}: {len(value)} values for {n_views} views; give one for all, or one each."
        )
    return list(value)


def generator(random_state: Any) -> np.random.Generator:
    """numpy's Generator from scikit-learn's convention: an int gives the same draws, None fresh
    ones.
    """
    return np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
