"""Figures of predictions of known labels, as plain values and as text, for `report` and
`evaluate`.
"""

from collections.abc import Mapping, Sequence
from math import floor, isfinite, log10
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float64

from coreg_core.arrays import Arr
from coreg_core.evaluation import (
    TENTHS,
    auc,
    auc_error,
    calibration_error,
    estimate,
    log_loss,
    paired,
    r_squared,
    ranks,
    tenths,
)
from coreg_core.stability import LEAST_ROWS

Values: TypeAlias = dict[str, Any]  # figures as JSON has them
OF_NUMBERS = {"r2": "R²", "mae": "mean absolute error"}
OF_CLASSES = {
    "auc": "AUC",
    "auc_se": "its standard error",
    "gini": "Gini",
    "ks": "KS",
    "log_loss": "log loss",
    "calibration_error": "calibration error",
}
OF_SEVERAL = {"accuracy": "accuracy", "log_loss": "log loss"}
FEWEST_OF_CLASS = 10  # labels, also of the other classes; the AUC of fewer is chance
WIDTH = 15  # of the longest name of a model in a report


def of_residuals(
    residuals: Arr, labels: Arr | None, baseline: Arr | None = None, *, wider: float = 1.0
) -> Values:
    """The error with its standard error, R² where the labels are known, and the relative change
    against the baseline on the same rows, its standard error times ``wider``.
    """
    n = len(residuals)
    error = estimate(residuals)
    out = {
        "rmse": error.rmse,
        "se": known(error.standard_error) or 0.0,
        "rows": n,
        "mae": float(np.abs(residuals).mean()),
        "r2": None,
    }
    if labels is not None:
        out["r2"] = known(r_squared(residuals, labels[:n]))
    if baseline is not None:
        beside = paired(residuals, baseline[:n])
        out["change"] = beside.change
        out["change_se"] = wider * (known(beside.change_se) or 0.0)
    return out


def of_classes(probabilities: Arr, labels: Arr) -> Values:
    """How probabilities rank labels of 0 and 1, and their calibration. Tenths only if each holds
    `LEAST_ROWS` rows: none shows a single label.
    """
    area, distance = ranks(probabilities, labels)
    positive = float(labels.sum())
    negative = len(labels) - positive
    if min(positive, negative) < FEWEST_OF_CLASS:
        area = distance = float("nan")
    columns: Values = {}
    if labels.any():
        columns = tenths(probabilities, labels)
        if min(columns["rows"]) < LEAST_ROWS:
            columns = {}
    return {
        "auc": known(area),
        "auc_se": known(auc_error(area, positive, negative)),
        "gini": known(2.0 * area - 1.0),
        "ks": known(distance),
        "log_loss": log_loss(probabilities, labels),
        "calibration_error": calibration_error(probabilities, labels),
        "tenths": columns,
    }


def of_several_classes(
    probabilities: Float64[Arr, "n t"], labels: Arr, classes: Sequence[str]
) -> Values:
    """Of probabilities of several classes, whose labels are places: the share of labels that are
    the most probable class, the log loss, and the area under the ROC curve of each class.
    """
    place = labels.astype(np.int64)
    areas = {}
    for k, name in enumerate(classes):
        is_class = (place == k).astype(np.float64)
        few = min(is_class.sum(), len(labels) - is_class.sum()) < FEWEST_OF_CLASS
        areas[name] = None if few else known(auc(probabilities[:, k], is_class))
    return {
        "accuracy": float(np.mean(probabilities.argmax(axis=1) == place)),
        "log_loss": log_loss(probabilities, labels),
        "auc_by_class": areas,
    }


def known(value: float) -> float | None:
    """JSON has no NaN."""
    if isfinite(value):
        return value
    return None


def decimals(largest: float) -> str:
    """The format of a column of errors: as many decimals for each as give the largest four
    digits.
    """
    if 1e-3 <= largest < 1e7:
        return f"{max(0, 3 - floor(log10(largest)))}f"
    return "4g"


def table(models: Mapping[str, Values]) -> list[str]:
    """One line for each model: its error and its change, each ± one standard error, and a bar whose
    light end is one standard error. Then its other figures, which an older file does not have.
    """
    longest = max(figures["rmse"] + figures["se"] for figures in models.values()) or 1.0
    digits = f".{decimals(longest)}"
    width = max(WIDTH, *map(len, models))
    errors = list[str]()
    others = list[str]()
    for name, figures in models.items():
        error = figures["rmse"]
        se = figures["se"]
        change = ""
        if "change" in figures:
            change = change_text(figures)
        whole = round(36 * error / longest)
        end = round(36 * (error + se) / longest)
        bar = "█" * whole + "░" * (end - whole)
        errors.append(f"{name:<{width}} {error:>9{digits}} ± {se:<7{digits}} {change:<16} {bar}")
        listed = _others(figures)
        if listed:
            others.append(f"{name:<{width}} {', '.join(listed)}")
    return errors + others


def change_text(figures: Values) -> str:
    """The change of an error, with its standard error."""
    return f"{100 * figures['change']:+.1f} % ± {100 * figures['change_se']:.1f}"


def _others(figures: Values) -> list[str]:
    areas = figures.get("auc_by_class")
    if areas is not None:
        shown = OF_SEVERAL
    elif "auc" in figures:
        shown = OF_CLASSES
    elif figures.get("r2") is not None:
        shown = OF_NUMBERS
    else:
        return []
    listed = [f"{label} {_shown(figures[key])}" for key, label in shown.items() if key in figures]
    if areas is not None:
        listed += [f"AUC of {name} {_shown(area)}" for name, area in areas.items()]
    return listed


def _shown(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.4g}"


def tenth_lines(columns: Values | None, of: str) -> list[str]:
    """`coreg_core.evaluation.tenths` as a table, with a heading; none without them."""
    if not columns:
        return []
    rows = zip(*(columns[name] for name in TENTHS), strict=True)
    return [
        f"tenths of {of}, the largest probabilities first",
        "  rows  predicted  observed   lift    gain",
        *("{:>6.0f} {:>10.3f} {:>9.3f} {:>6.2f} {:>7.3f}".format(*row) for row in rows),
    ]
