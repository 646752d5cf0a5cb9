"""Does joining pay here? What a run found at this site as plain values that a model file keeps, and as sentences and a
table.

Every figure is of labels that neither the model nor any choice about it had seen.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, TypeAlias

from coreg_core.agreement.views.left_out import PathChoice
from coreg_core.evaluation import calibration
from coreg_core.evaluation.losses import Estimate, estimate, paired
from coreg_core.evaluation.recommendation import LEAST_LABELS, Choice, Told, keeps_joined
from coreg_core.evaluation.track_record import Experience
from coreg_core.numerics.arrays import Arr
from site_agent.machine.memory import Judged

Found: TypeAlias = dict[str, Any]
ROWS = {
    "alone": "alone",
    "agreement": "agreement, own λ",
    "joined": "learnt together",
    "together": "scored together",
}


def of_training(judged: Judged, labels: int) -> Found:
    verdict = judged.verdict
    looked = (
        verdict.alone is not None or verdict.told is not Told.NOTHING
    )  # without folds there is nothing to recommend by
    return {
        "labels": labels,
        "alone": _plain(verdict.alone),
        "joined": _plain(verdict.joined),
        "together": _plain(verdict.together),
        "own": verdict.own.value if looked else None,
        "score": verdict.score.value if looked else None,
        "told": verdict.told.value,
        "forecast": _known(verdict.forecast),
        "federation": _known(judged.federation),
        "r2": judged.r2,
    }


def of_path(choice: PathChoice, alone: Arr, divisor: float) -> Found:
    """What a path of λ found: the site's own choice on it beside the site alone; ``alone`` are left-out errors at λ = 0."""
    found: Found = {"labels": len(alone), "alone": _plain(estimate(alone * divisor))}
    if choice.nested is None:
        return found
    kept = Choice.JOINED if keeps_joined(paired(choice.nested, alone)) else Choice.ALONE
    return {**found, "agreement": _plain(estimate(choice.nested * divisor)), "own": kept.value}


def _plain(found: Estimate | None) -> dict[str, float] | None:
    if found is None or found.rows == 0:
        return None
    se = found.standard_error
    return {"rmse": found.rmse, "se": se if isfinite(se) else 0.0, "rows": found.rows}


def _known(value: float) -> float | None:
    return value if isfinite(value) else None


def together(found: Sequence[Found]) -> Found:
    """Findings of several runs of one site as one; the first that has a figure tells it."""
    keys = dict.fromkeys(key for each in found for key in each)
    return {key: next((each[key] for each in found if each.get(key) is not None), None) for key in keys}


def table(found: Mapping[str, Any]) -> list[tuple[str, float, float, float | None]]:
    """(name, error, standard error, change against alone) of every figure that there is."""
    alone = found.get("alone")
    return [
        (
            ROWS[key],
            found[key]["rmse"],
            found[key]["se"],
            found[key]["rmse"] / alone["rmse"] - 1.0 if alone and key != "alone" and alone["rmse"] > 0.0 else None,
        )
        for key in ROWS
        if found.get(key)
    ]


def lines(found: Mapping[str, Any]) -> list[str]:
    """The table and the picture as text: a bar is an error, its end what one standard error leaves open."""
    rows = table(found)
    longest = max((error + se for _, error, se, _ in rows), default=1.0) or 1.0
    out = []
    for name, error, se, change in rows:
        whole, left = round(40 * error / longest), round(40 * (error + se) / longest)
        bar = "█" * whole + "░" * (left - whole)
        told = "" if change is None else f"{100 * change:+.1f} %"
        out.append(f"{name:<18} {error:>9.4g} ± {se:<7.2g} {told:>8}  {bar}")
    return out


def without_labels(r2: float) -> str:
    """What can be said before anything is trained, from no label."""
    return (
        f"before training, from no label: this site's columns predict the others' score with r² = {r2:.2f}"
        f"{_like(calibration.R2, r2)}"
    )


def sentences(found: Mapping[str, Any]) -> list[str]:
    """The recommendation, and what it rests on."""
    told: list[str] = []
    if (r2 := found.get("r2")) is not None:
        told.append(without_labels(r2))
    labels, forecast = found.get("labels", 0), found.get("forecast")
    if found.get("told") == Told.OWN.value and forecast is not None:
        told.append(
            f"forecast from {labels} own labels: {100 * forecast:+.1f} % error by learning together"
            f"{_like(calibration.OWN, forecast)}"
        )
    elif found.get("told") == Told.FEDERATION.value and forecast is not None:
        told.append(
            f"forecast of the federation, all its labels summed: {100 * forecast:+.1f} % error by learning together (a site with "
            f"{labels} labels, below {LEAST_LABELS}, has no figure of its own that says much)"
            f"{_like(calibration.FEDERATION, forecast)}"
        )
    told += recommended(found)
    return told


def _change(found: Mapping[str, Any]) -> float:
    """Of scoring together against the model alone."""
    alone = found["alone"]["rmse"]
    return float(found["together"]["rmse"] / alone - 1.0) if alone > 0.0 else 0.0


def _like(experience: Experience, forecast: float) -> str:
    """What came of sites on real tables that were told the like: the benefit study's figures, not this federation's."""
    band = experience.like(forecast)
    if band is None:
        return ""
    return (
        f"; of {band.sites} sites in docs/research/benefit.md that were told the like, half came to "
        f"{100 * band.median_change:+.1f} % or better, and {100 * band.harmed:.0f} % were worse by more than 2 %"
    )


def recommended(found: Mapping[str, Any]) -> list[str]:
    """What to do, in a sentence or two; nothing where nobody looked."""
    if found.get("own") is None:
        return ["whether joining pays here was not looked at: [model] forecast = true does"] if "r2" in found else []
    if found["own"] == Choice.ALONE.value:
        first = "recommendation: stay alone; on own labels the joined model errs more, by above one standard error"
    elif found.get("joined") is None and found.get("agreement") is None:
        first = "recommendation: keep the joined model; own labels do not speak against it, as there are too few"
    else:
        first = (
            "recommendation: keep the joined model; own labels do not speak against it by more than one standard error"
        )
    told = [f"{first} (the model alone is beside it in any case)"]
    if found.get("together") is not None:
        if found.get("score") == Choice.TOGETHER.value:
            told.append(
                "where all sites know an instance, score it together (coreg-agent score): own folds err less so"
                f"{_like(calibration.TOGETHER, _change(found))}"
            )
        else:
            told.append("do not score together: own folds err no less so than alone")
    return told
