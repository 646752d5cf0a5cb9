"""Limits of the estimators' parameters, one table for all: a name means the same in each of them."""

from numbers import Integral, Real
from typing import Any

from sklearn.utils._param_validation import (
    Interval,
    InvalidParameterError,
    StrOptions,
    validate_parameter_constraints,
)

from coreg_core.agreement.schedules import SCHEDULE_NAMES
from coreg_core.errors import UsageError

_POSITIVE, _NOT_NEGATIVE = Interval(Real, 0, None, closed="neither"), Interval(Real, 0, None, closed="left")
_COUNT, _COUNT_OR_0 = Interval(Integral, 1, None, closed="left"), Interval(Integral, 0, None, closed="left")
SOLVERS = ("direct", "stacked", *SCHEDULE_NAMES)
_CHOICES = {
    "cca": {"exact", "randomised"},
    "eigen_solver": {"dense", "lanczos"},
    "form": {"exact", "semi-parametric"},
    "kernel": {"gaussian", "laplacian", "polynomial", "linear"},
    "loss": {"separate", "mean"},
    "preset": {"loo", "paper"},
    "solver": {*SOLVERS},
    "start": {"pca", "random"},
}
_NUMBERS = {
    "coupling cca_ridge epsilon eta_predictors eta_target manifold offset parallel": _NOT_NEGATIVE,
    "rank_tolerance ridge_latent target_weight tolerance": _NOT_NEGATIVE,
    "ridge_new_rows ridge_predictors ridge_target tol": _POSITIVE,
    "degree landmarks max_rounds n_labelled_step n_neighbours n_steps n_unlabelled_step rows_per_feature": _COUNT,
    "n_epochs": _COUNT_OR_0,
    "fit_intercept one_standard_error": "boolean",
    "random_state": "random_state",
    "cv": "cv_object",
}
_LIMITS: dict[str, list[Any]] = {
    **{name: [StrOptions(choices)] for name, choices in _CHOICES.items()},
    **{name: [limit] for names, limit in _NUMBERS.items() for name in names.split()},
    **{name: [_COUNT, None] for name in ("dimension", "n_components", "n_eigenfunctions", "n_latent", "sketch")},
    "max_unlabelled_step": [_COUNT, None],
    "eta0": [StrOptions({"auto"}), _POSITIVE, "array-like", None],
    "prediction_tol": [_POSITIVE, None],
}
_PRESETS = {"loo": ("loo", "loo", True), "paper": ("paper", "paper", False)}


def by_preset(estimator: Any) -> tuple[Any, Any, bool]:
    """Bandwidth, ridge and whether there is an intercept: the given values, and the preset's where they are None."""
    given = (estimator.bandwidth, estimator.ridge, estimator.fit_intercept)
    bandwidth, ridge, intercept = (
        default if value is None else value for value, default in zip(given, _PRESETS[estimator.preset], strict=True)
    )
    return bandwidth, ridge, bool(intercept)


def check_parameters(estimator: Any) -> None:
    """Check the parameters of an estimator by scikit-learn's validation.

    Raises
    ------
    UsageError
        (a ValueError) a parameter out of range; the message names it, its limits and its value.
    """
    given = estimator.get_params(deep=False)
    preset, each = "preset" in given, ["array-like"] if "views" in given and "landmarks" not in given else []
    none = [None] if preset else []
    rules = {"paper", "median", "loo"} if preset else {"loo"} if "landmarks" in given else {"paper", "median"}
    limits = {name: limit for name, limit in _LIMITS.items() if name in given}
    limits |= {"fit_intercept": ["boolean", *none], "bandwidth": [StrOptions(rules), _POSITIVE, *each, *none]}
    # XNV and XKS allow γ = 0.
    smallest, rules = (_NOT_NEGATIVE if "cca" in given else _POSITIVE), {"paper", "loo"} if preset else {"loo"}
    by_rule = [StrOptions(rules)] if preset or getattr(estimator, "ridge_by_rule", False) else []
    limits["ridge"] = [*by_rule, smallest, *each, *none]
    for name in ("loss", "kernel"):  # of fewer choices than the name has elsewhere
        if choices := getattr(estimator, {"loss": "losses", "kernel": "kernels"}[name], None):
            limits[name] = [StrOptions(set(choices))]
    limits = {name: limit for name, limit in limits.items() if name in given}
    for name, value in given.items():
        limit = limits.get(name, [])
        if isinstance(value, bool) and "boolean" not in limit and any(isinstance(each, Interval) for each in limit):
            raise UsageError(f"{name}={value!r}: needs a number.")
    try:
        validate_parameter_constraints(limits, given, caller_name=type(estimator).__name__)
    except InvalidParameterError as error:
        raise UsageError(str(error)) from None
