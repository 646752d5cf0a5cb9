"""Does joining pay here? The findings of one run at this site, as plain values for a model file, as a table and as
sentences.

All errors are from labels that neither the model nor a choice about it had seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any, TypeAlias

from coreg_core.agreement.views.left_out import PathChoice
from coreg_core.errors import BadData, UsageError
from coreg_core.evaluation.losses import Estimate, estimate, paired
from coreg_core.evaluation.probability import auc
from coreg_core.evaluation.recommendation import LEAST_LABELS, Choice, Told, keeps_joined
from site_agent.machine.memory import Judged, SiteResult
from site_agent.models.file import load_model

Found: TypeAlias = dict[str, Any]
ROWS = {
    "mean": "mean of labels",
    "alone": "local model",
    "agreement": "joined, own λ",
    "joined": "joined model",
    "together": "scored together",
}
FEW = 20  # labels; with fewer, left-out errors are chance
CLEAR = 0.01  # a smaller change of the error is no reason for a model
LOCAL_CHOSEN = "Your labels chose λ = 0; both files are equal: they make the same predictions."


def of_training(judged: Judged, labels: int, *, classes: bool = False) -> Found:
    """Findings of an additive training; ``classes``: of a yes/no target."""
    verdict, rows = judged.verdict, judged.left_out
    areas = {}
    if classes and rows is not None:
        scores = {"alone": rows.alone, "joined": rows.own, "together": rows.together}
        areas = {key: _known(auc(each, rows.labels)) for key, each in scores.items() if isfinite(each.sum())}
    looked = verdict.alone is not None or verdict.told is not Told.NOTHING  # without folds there is no recommendation
    return {
        "labels": labels,
        "mean": _plain(judged.baseline),
        "alone": _plain(verdict.alone),
        "joined": _plain(verdict.joined),
        "together": _plain(verdict.together),
        "own": verdict.own.value if looked else None,
        "score": verdict.score.value if looked else None,
        "told": verdict.told.value,
        "forecast": _known(verdict.forecast),
        "federation": _known(judged.federation),
        "r2": judged.r2,
        **({"auc": areas} if areas else {}),
    }


def of_path(choice: PathChoice, couplings: tuple[float, ...], divisor: float) -> Found:
    """Findings of a path of λ that contains 0: the site's own choice beside the site alone.

    Parameters
    ----------
    couplings
        λ of each member of the path.
    divisor
        from the run's units to those of the target.
    """
    alone = choice.left_out[couplings.index(0.0)]
    found: Found = {
        "labels": len(alone),
        "alone": _plain(estimate(alone * divisor)),
        "chosen": couplings[choice.chosen],
    }
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


def chose_local(found: Mapping[str, Any]) -> bool:
    """Whether the site's labels chose λ = 0, so that the kept model is the local model."""
    return found.get("chosen") == 0.0


def table(found: Mapping[str, Any]) -> list[tuple[str, float, float, float | None]]:
    """(name, error, standard error, relative change against alone) of each error in the findings.

    Where the labels chose λ = 0, "agreement" is left out: it is the error of the choice, and the kept model is the local one.
    """
    alone = found.get("alone")
    return [
        (
            ROWS[key],
            found[key]["rmse"],
            found[key]["se"],
            found[key]["rmse"] / alone["rmse"] - 1.0 if alone and key != "alone" and alone["rmse"] > 0.0 else None,
        )
        for key in ROWS
        if found.get(key) and not (key == "agreement" and chose_local(found))
    ]


def decimals(largest: float) -> str:
    """The format of a column of errors: as many decimals for each as give the largest four digits."""
    return f"{max(0, 3 - floor(log10(largest)))}f" if 1e-3 <= largest < 1e7 else "4g"


def lines(found: Mapping[str, Any], target: str) -> list[str]:
    """The errors as text under a header: a bar for each error, its light end for one standard error; none without errors."""
    rows = table(found)
    if not rows:
        return []
    of = f"the score for {target}, which is 0 or 1," if found.get("auc") else f"{target}, in units of {target},"
    left_out = max(int(found[key]["rows"]) for key in ROWS if found.get(key))
    longest = max((error + se for _, error, se, _ in rows), default=1.0) or 1.0
    digits = decimals(longest)
    out = [
        f"root mean square error of {of} on {left_out} left-out labels (± one standard error)",
        f"{'model':<18} {'error':>9} ± {'s.e.':<7} {'change':>8}",
    ]
    for name, error, se, change in rows:
        whole, end = round(40 * error / longest), round(40 * (error + se) / longest)
        bar = "█" * whole + "░" * (end - whole)
        beside = "" if change is None else f"{100 * change:+.1f} %"
        out.append(f"{name:<18} {error:>9.{digits}} ± {se:<7.{digits}} {beside:>8}  {bar}")
    if areas := {key: area for key, area in (found.get("auc") or {}).items() if area is not None}:
        listed = ", ".join(f"{ROWS[key]} {area:.2f}" for key, area in areas.items())
        out.append(f"area under the ROC curve on the same labels (AUC; 0.5 is chance, 1 is perfect): {listed}")
    return out


def without_labels(r2: float) -> str:
    """The forecast before any training, from no label."""
    return f"before training, from no label: this site's columns predict the other sites' score with r² = {r2:.2f}."


def aligned(result: SiteResult) -> list[str]:
    """What this site learnt of an alignment."""
    if result.aligned is None:
        return []
    found = result.aligned
    (least, most), *rest = found.known_to
    more = "".join(f", {many} to {sites} or more" for sites, many in rest)
    told = [f"{most} of this site's ids are known to {least} or more sites{more} (this site included)."]
    return [*told, f"the shared set: {len(found.ids)} ids that every site knows."]


def told(found: Mapping[str, Any], target: str) -> list[str]:
    """What the report prints: the recommendation, the errors on left-out labels, and the forecasts."""
    return [*recommended(found), *lines(found, target), *forecasts(found)]


def forecasts(found: Mapping[str, Any]) -> list[str]:
    """The change of the error that was expected before and after the training."""
    out: list[str] = []
    if (r2 := found.get("r2")) is not None:
        out.append(without_labels(r2))
    labels, forecast = found.get("labels", 0), found.get("forecast")
    if found.get("told") == Told.FEDERATION.value and forecast is not None:
        out.append(
            f"forecast of the federation, from the labels of all sites: {100 * forecast:+.1f} % error by learning together "
            f"(this site has {labels} labels; a forecast of its own needs {LEAST_LABELS})."
        )
    return out


def _joined_change(found: Mapping[str, Any]) -> str:
    """The joined model's error on left-out labels, against the local model's."""
    alone, joined = found["alone"]["rmse"], (found.get("joined") or found["agreement"])["rmse"]
    change = joined / alone - 1.0 if alone > 0.0 else 0.0
    return f"{100 * abs(change):.1f} % {'larger' if change > 0.0 else 'smaller'}"


def _own_model(found: Mapping[str, Any]) -> str:
    """Which of its two models a site keeps for predictions alone, and why."""
    alone, labels = found["own"] == Choice.ALONE.value, found.get("labels", FEW)
    if not alone and found.get("joined") is None and found.get("agreement") is None:
        return "keep the joined model. This site has too few labels for a test."
    change = _joined_change(found)
    if not alone and labels < FEW:
        return (
            f"{labels} labels are too few to tell. On left-out labels the joined model's error is {change}, which can be chance. "
            "The joined model is the default."
        )
    if float(change.partition(" ")[0]) < 100 * CLEAR:
        return f"no clear difference. On left-out labels the joined model's error is {change}; either model serves."
    if alone:
        return (
            f"stay alone. On left-out labels the joined model's error is {change}, more than one standard error of the paired "
            "difference."
        )
    beside = ""
    if change.endswith("larger"):
        beside = ", which is within one standard error: joined models are better on average, so they are the default"
    elif labels < LEAST_LABELS:
        beside = f". With {labels} labels this can be chance"
    return f"keep the joined model. On left-out labels its error is {change}{beside}."


def recommended(found: Mapping[str, Any]) -> list[str]:
    """The recommendation; none where no forecast was made."""
    if chose_local(found):
        return [LOCAL_CHOSEN]
    if found.get("own") is None:
        return (
            ["the run had no forecast, so there is no recommendation. Set [model] forecast = true."]
            if "r2" in found
            else []
        )
    errors = [found[key]["rmse"] for key in ("alone", "joined", "together") if found.get(key)]
    if found.get("mean") and errors and min(errors) > (1.0 - CLEAR) * found["mean"]["rmse"]:
        return [
            "recommendation: none yet. On left-out labels no model is clearly better than the mean of the labels, which can be "
            "chance with few labels. Use more labels before you rely on a model. All models are saved."
        ]
    out = [f"recommendation: {_own_model(found)} The local model is saved too."]
    if found.get("together") is not None:
        if found.get("score") == Choice.TOGETHER.value:
            out.append(
                "score together the instances that all sites know (a scoring study of the coordinator's operator, or "
                "`coreg-agent score`): the error on left-out labels is smaller."
            )
        else:
            out.append("do not score together: the error on left-out labels is not smaller than alone.")
    return out


@dataclass(frozen=True)
class RunFindings:
    """The findings of one run, and one of its model files."""

    run: str
    model: Path
    target: str
    found: Found

    @property
    def lines(self) -> list[str]:
        """A heading, the recommendation, and the errors beside this run's own "alone"."""
        return [f"run {self.run} ({self.model})", *told(self.found, self.target)]


def report(models: Sequence[Path]) -> list[RunFindings]:
    """The findings of each run, in the order of the arguments; a run with several model files counts once.

    Raises
    ------
    BadData
        no model has findings: its run had neither a path of λ nor a forecast.
    UsageError
        the models are of different sites.
    """
    loaded = [(path, load_model(path)) for path in models]
    if len(sites := sorted({model.site for _, model in loaded})) > 1:
        raise UsageError(f"these models are of {len(sites)} sites ({', '.join(sites)}). A report is about one site.")
    runs: dict[str, RunFindings] = {}
    for path, model in loaded:
        if model.found:
            runs.setdefault(model.run, RunFindings(model.run, path, model.target, model.found))
    if not runs:
        raise BadData(
            f"{', '.join(map(str, models))}: no report is in there. A local model has none: give the joined model of the "
            "same run (model.coreg). It has a report if the run had forecast = true (additive objective) or a path of couplings."
        )
    return list(runs.values())
