"""The picture of `report` and `evaluate` (extra ``plot``): a row of panels, in SVG, PNG or PDF."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coreg_wire.files.output import PICTURES, check_output, write_output
from site_agent.models.figures import Values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BY = {
    "shapley": "mean contribution",
    "permutation": "growth of the error, permuted",
    "stability": "population stability index",
}


def draw(path: Path, target: str, models: Values, findings: Values) -> None:
    """Errors by model; calibration and gain of a yes/no target, the area under the curve of each of
    several classes, or residuals of numbers; own columns.

    ``models``: the figures of each. ``findings``: "left_out", "columns" and "columns_by", where
    known.
    """
    from matplotlib.figure import Figure

    check_output(path, "--plot", PICTURES)
    models = {_short(name): figures for name, figures in models.items()}
    several = any("auc_by_class" in figures for figures in models.values())
    panels = 3
    if any("auc" in figures for figures in models.values()):
        panels = 4
    figure = Figure(figsize=(4.0 * panels, 4.0), layout="constrained")
    errors, *middle, last = figure.subplots(1, panels)
    what = "root mean square error"
    if several:
        what = "root of the Brier score"
    _errors(errors, f"{what} of {target}", models)
    if several:
        _areas(middle[0], models)
    elif panels == 4:
        _tenths(middle[0], middle[1], models)
    else:
        _residuals(middle[0], target, findings.get("left_out") or {"residuals": {}})
    by = findings.get("columns_by", "")
    _columns(last, findings.get("columns") or {}, BY.get(by, ""))
    drawn = io.BytesIO()
    kind = path.suffix.lower().removeprefix(".")
    metadata = None
    if kind == "svg":
        metadata = {"Date": None}
    figure.savefig(drawn, format=kind, metadata=metadata)
    write_output(path, drawn.getvalue(), "--plot", PICTURES)


def _errors(axes: "Axes", what: str, models: Values) -> None:
    sizes = [figures["rmse"] for figures in models.values()]
    errors = [figures["se"] for figures in models.values()]
    axes.barh(list(models), sizes, xerr=errors)
    axes.invert_yaxis()
    axes.set(title="Error", xlabel=f"{what} ± s.e.")


def _columns(axes: "Axes", values: Values, what: str) -> None:
    """The importance of own columns, the largest first."""
    ordered = sorted(values, key=lambda name: -values[name])
    axes.barh(ordered, [values[name] for name in ordered])
    axes.invert_yaxis()
    axes.set(title="Own columns", xlabel=what)


def _short(name: str) -> str:
    """The end of a path: a whole one leaves no room for the axes."""
    return "/".join(Path(name).parts[-2:])[-40:]


def _residuals(axes: "Axes", target: str, left_out: Values) -> None:
    for name, residuals in left_out["residuals"].items():
        predicted = np.array(left_out["labels"]) - np.array(residuals)
        axes.plot(predicted, residuals, ".", alpha=0.6, label=name)
        axes.legend()
    axes.axhline(0.0, color="grey")
    axes.set(title="Residuals", xlabel=f"predicted {target}", ylabel="label − prediction")


def _areas(axes: "Axes", models: Values) -> None:
    for name, figures in models.items():
        by_class = figures.get("auc_by_class", {})
        areas = {label: area for label, area in by_class.items() if area}
        if areas:
            axes.plot(list(areas.values()), list(areas), "o", label=name)
            axes.legend()
    axes.set(title="Area under the ROC curve", xlabel="of each class; 0.5 is chance")


def _tenths(calibration: "Axes", gain: "Axes", models: Values) -> None:
    for axes in (calibration, gain):
        axes.axline((0.0, 0.0), slope=1.0, color="grey")
    for name, figures in models.items():
        columns = figures.get("tenths")
        if columns:
            calibration.plot(columns["probability"], columns["positive"], "o-", label=name)
            calibration.legend()
            rows = np.cumsum([0.0, *columns["rows"]])
            gain.plot(rows / rows[-1], [0.0, *columns["gain"]], "o-")
    calibration.set(title="Calibration by tenths", xlabel="predicted", ylabel="share of label 1")
    gain.set(title="Gain", xlabel="share of rows, the largest first", ylabel="share of labels 1")
