"""Does joining pay here? The findings of one run at this site, as plain values for a model file, as
a table and as sentences.

All errors are from labels that the models had not seen. Only the weight of the blend is chosen on
them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from coreg_core.additive.check import WIDER
from coreg_core.additive.site_model import SiteModel
from coreg_core.additive.worth import Worth
from coreg_core.agreement.left_out import PathChoice
from coreg_core.arrays import Arr
from coreg_core.errors import BadData, UsageError
from coreg_core.evaluation import (
    LEAST_TO_CALIBRATE,
    brier_residuals,
    can_calibrate,
    fit_class_probabilities,
    fit_probability,
    p_value,
    paired,
)
from site_agent.data.preprocessing import Preprocessing
from site_agent.machine.results import (
    LABELS_TO_JUDGE,
    AdditiveResult,
    AgreementResult,
    AlignmentResult,
    Judged,
    Result,
)
from site_agent.models import explain
from site_agent.models.figures import (
    of_classes,
    of_residuals,
    of_several_classes,
    table,
    tenth_lines,
)
from site_agent.models.file import ModelFile, load_model

Found: TypeAlias = dict[str, Any]
ROWS = {
    "mean": "mean of labels",
    "local": "local model",
    "agreement": "joined, own λ",
    "joined": "joined model",
    "score": "scored together",
}
MOST_POINTS = 500  # of left-out labels that are kept for a picture
EQUAL = 0.0005  # a change that is printed as 0.0 %
CLEAR = 0.01  # a smaller change of the error is no reason for a model
LOCAL_CHOSEN = "Your labels chose λ = 0; both files are equal: they make the same predictions."
UNSEEN = (
    "warning: the eight words were NOT compared (--accept-words): any site of this run can be an"
    " invention."
)
OF_TWO = (
    "two sites: in a scoring each can compute the other's part of a score. So it needs"
    " scores_of_two = true in both policies (policy.toml)."
)
USE = {
    "local": "stay alone",
    "joined": "keep the joined model",
    "score": (
        "score together the instances that all sites know (a scoring study of the coordinator's"
        " operator, or `coreg-agent score`)"
    ),
}


def of(result: Result, preprocessing: Preprocessing) -> Found | None:
    """The findings of a training; None if nothing was judged."""
    match result:
        case AdditiveResult():
            training = of_additive(result) | of_partners(result.partners)
            if isinstance(result.model, SiteModel):
                training |= of_linear(result.model, preprocessing)
            return training
        case AgreementResult() if result.choice is not None and 0.0 in result.couplings:
            return of_path(result.choice, result.couplings, result.divisor)
        case _:
            return None


def of_additive(result: AdditiveResult) -> Found:
    """The verdict of an additive training."""
    if result.classes:
        return of_class_training(result.judged, result.gains, result.classes)
    return of_training(result.judged, result.gains, classes=bool(result.probabilities))


def of_training(
    judged: Judged, gains: Mapping[str, float] | None = None, *, classes: bool = False
) -> Found:
    """Findings of an additive training; ``gains``: of the score at other sites, ``classes``: of a
    yes/no target.
    """
    verdict, y, left = judged.verdict, judged.labels, judged.verdict.left_out
    found: Found = {"labels": len(y), "recommended": verdict.recommended, "slope": verdict.slope}
    if left:
        found["mean"] = of_residuals((y - y.mean()) * (len(y) / (len(y) - 1)), y)
        shown = slice(0, min(MOST_POINTS, *map(len, left.values())))
        found["left_out"] = {
            "labels": y[shown].tolist(),
            "residuals": {k: r[shown].tolist() for k, r in left.items()},
        }
    for key, residuals in left.items():
        baseline = None if key == "local" else left["local"]
        found[key] = of_residuals(residuals, y, baseline, wider=WIDER)
        if classes:
            found[key] |= _of_scores(y[: len(residuals)] - residuals, y[: len(residuals)])
    if gains and len(y) < LABELS_TO_JUDGE:
        # Too few labels to judge: what the sites with labels found.
        found["elsewhere"] = dict(gains)
        if max(gains.values()) < 0.0:
            found["recommended"] = "score"
    if classes:
        found["calibrated"] = can_calibrate(y)
        found["auc"] = {key: found[key]["auc"] for key in left}
    return found


def of_class_training(judged: Judged, gains: Mapping[str, float], classes: Sequence[str]) -> Found:
    """Findings of a training of several classes; errors are roots of Brier scores."""
    y = judged.labels
    found: Found = {"labels": len(y), "recommended": "score", "slope": 1.0, "calibrated": True}
    found["classes"] = list(classes)
    left = judged.left_out_scores(classes)
    baseline: Arr | None = None
    if left:
        shares = np.bincount(y.astype(np.int64), minlength=len(classes)) / len(y)
        residuals = brier_residuals(np.tile(shares, (len(y), 1)), y)
        found["mean"] = of_residuals(residuals, None)
    for key in (key for key in ("local", "joined", "score") if key in left):
        labels = y[: len(left[key])]
        probabilities = fit_class_probabilities(left[key], labels).of(left[key])
        residuals = brier_residuals(probabilities, labels)
        found[key] = of_residuals(residuals, None, baseline, wider=WIDER)
        found[key] |= of_several_classes(probabilities, labels, classes)
        baseline = residuals if key == "local" else baseline
    models = [key for key in ("local", "joined", "score") if key in found]
    if models:
        found["recommended"] = min(models, key=lambda key: found[key]["rmse"])
    if gains and len(y) < LABELS_TO_JUDGE:
        found["elsewhere"] = dict(gains)
    return found


def _of_scores(scores: Arr, labels: Arr) -> Found:
    """Of left-out scores, turned into probabilities by the same labels."""
    return of_classes(fit_probability(scores, labels).of(scores), labels)


def of_partners(partners: Mapping[str, Worth | None]) -> Found:
    """What each other site's columns bring to the score, the largest first; without values where
    only the order is known.
    """
    rows = [{"site": site, **(vars(worth) if worth else {})} for site, worth in partners.items()]
    return {"partners": rows}


def of_linear(model: SiteModel, preprocessing: Preprocessing) -> Found:
    """With kernel = "linear": this site's coefficients in the units of its columns, with standard
    errors and p-values; the noise and R².
    """
    if (estimated := model.slopes()) is None:
        return {}
    scales = [scale for column in preprocessing.columns for scale in column.scales]
    slopes, errors = (np.asarray(each) / scales for each in estimated)
    rows = zip(preprocessing.feature_names, slopes.tolist(), errors.tolist(), strict=True)
    return {
        "coefficients": [
            {"column": name, "coefficient": b, "se": se, "p": p_value(b, se)}
            for name, b, se in rows
        ],
        "noise": model.noise,
        "r2": 1.0 - (model.noise / model.deviation_of_labels) ** 2,
    }


def of_path(choice: PathChoice, couplings: tuple[float, ...], divisor: float) -> Found:
    """Of a path of λ with 0; all errors are on the same folds.

    The joined model stays unless its nested loss is larger by a standard error.
    """
    place = couplings.index(0.0)
    left_out = choice.left_out[place]
    labels = None if choice.y is None else choice.y * divisor
    found: Found = {"labels": len(left_out), "chosen": couplings[choice.chosen]}
    if (folds := choice.folds) is None:
        return found | {"local": of_residuals(left_out * divisor, labels)}
    local = folds.members[place]
    beside = paired(folds.choice, local)
    kept = "local" if beside.difference > beside.standard_error else "joined"
    return {
        **found,
        "mean": of_residuals(folds.mean * divisor, labels),
        "local": of_residuals(local * divisor, labels),
        "agreement": of_residuals(folds.choice * divisor, labels, local * divisor, wider=WIDER),
        "recommended": kept,
    }


def chose_local(found: Mapping[str, Any]) -> bool:
    """Whether the site's labels chose λ = 0, so that the kept model is the local model."""
    return found.get("chosen") == 0.0


def shown_models(found: Mapping[str, Any]) -> dict[str, str]:
    """ROWS with an error; where the labels chose λ = 0, "agreement" is the error of the choice, and
    the local model is kept.
    """
    return {
        k: name
        for k, name in ROWS.items()
        if k in found and not (k == "agreement" and chose_local(found))
    }


def lines(found: Mapping[str, Any], target: str) -> list[str]:
    """The errors as a table under a header, and tenths of a yes/no target for the recommended
    model; none without errors.
    """
    if not (names := shown_models(found)):
        return []
    what = "root mean square error"
    of = f"{target}, in units of {target},"
    if found.get("auc"):
        of = f"the score for {target}, which is 0 or 1,"
    if found.get("classes"):
        what = "root of the Brier score"
        of = target
    left_out = max(int(found[key]["rows"]) for key in names)
    models = {name: found[key] for key, name in names.items()}
    best = found.get("recommended", "")
    return [
        f"{what} of {of} on {left_out} left-out labels (± one standard error)",
        "model               error ± s.e.      change ± s.e.",
        *table(models),
        *tenth_lines(found.get(best, {}).get("tenths"), f"these labels, {ROWS.get(best)}"),
    ]


def aligned(result: AlignmentResult) -> list[str]:
    """How many of this site's ids the others know."""
    (least, most), *rest = result.known_to
    more = "".join(f", {many} to {sites} or more" for sites, many in rest)
    return [
        f"{most} of this site's ids are known to {least} or more sites{more} (this site included).",
        f"the shared set: {len(result.ids)} ids that every site knows.",
    ]


def coefficients(found: Mapping[str, Any], target: str) -> list[str]:
    """A linear regression's own coefficients, with intervals of 95 %; none for another kernel."""
    if not (rows := found.get("coefficients")):
        return []
    wide = max(len(row["column"]) for row in rows)
    out = [
        f"change of the score of {target} for one unit of each column, all others fixed (± s.e., 95"
        " % interval, p)"
    ]
    for row in rows:
        b, se = row["coefficient"], row["se"]
        ends = f"{b - 1.96 * se:>11.4g} to {b + 1.96 * se:<11.4g}"
        p = row.get("p", p_value(b, se))  # an older file has none
        out.append(f"{row['column']:<{wide}} {b:>11.4g} ± {se:<9.3g} {ends} {p:.3g}")
    return [
        *out,
        (
            f"of all sites: R² {found['r2']:.2f}, deviation of a label from its score"
            f" {found['noise']:.4g}, noise on labels included"
        ),
    ]


def _scores_at_the_end(found: Mapping[str, Any]) -> list[str]:
    """What the training's own joint scores are worth; nothing where it ended without any."""
    if "scored" not in found:
        return []
    told = f"scores.csv: joint scores of {found['scored']} shared individuals without a label."
    score = found.get("score")
    if gains := found.get("elsewhere"):
        return [f"{told} {_elsewhere(gains)}."]
    if score is None:
        return [told]
    change = f"{100 * score['change']:+.1f} % ± {100 * score['change_se']:.1f}"
    return [f"{told} Their error against the local model, on left-out labels: {change}."]


def sentences(found: Mapping[str, Any], target: str) -> list[str]:
    return [
        *_scores_at_the_end(found),
        *recommended(found),
        *lines(found, target),
        *_rows_elsewhere(found),
        *partners(found),
        *explain.lines(found, target),
        *coefficients(found, target),
        *([f"{found['training']} (openings in policy.toml)."] if "training" in found else []),
    ]


def _rows_elsewhere(found: Mapping[str, Any]) -> list[str]:
    """What the score is worth at each site that can judge it, of a site whose labels cannot."""
    gains = found.get("elsewhere") or {}
    listed = ", ".join(f"{site} {100 * change:+.0f} %" for site, change in sorted(gains.items()))
    what = f"{ROWS['score']}: error against the local model at other sites, rounded to 5 %"
    if len(gains) == 1 and "scored" in found:
        return []  # the line of the scores has it
    return [f"{what}: {listed}"] if gains else []


def partners(found: Mapping[str, Any]) -> list[str]:
    """The score's error without each other site's columns, or the order of the sites."""
    rows = found.get("partners") or []
    known = [row for row in rows if "change" in row]
    if known:
        heading = (
            "change of the score's error without a partner's columns (its labels stay, ± s.e.)"
        )
        return [heading, *map(_of_partner, known)]
    if len(rows) < 2:
        return []
    listed = ", ".join(row["site"] for row in rows)
    return [f"{listed}: partners by what their columns bring to the score, the most first"]


def _of_partner(row: Mapping[str, Any]) -> str:
    ends = f"± {100 * row['standard_error']:.0f}"
    return f"{row['site']:<15} {100 * row['change']:+.0f} % {ends}"


def alone(found: Mapping[str, Any]) -> Literal["local", "joined"]:
    """The model that the report advises for predictions without the other sites."""
    choice = found.get("recommended")
    worse = choice == "score" and found.get("joined", {}).get("change", -1.0) >= 0.0
    return "local" if worse or choice == "local" else "joined"


def recommended(found: Mapping[str, Any]) -> list[str]:
    """The recommendation and warnings; nothing where no model was judged."""
    out = _recommendation(found)
    if found.get("of_two"):
        out.append(OF_TWO)
    if not found.get("words_compared", True):
        out.append(UNSEEN)
    return out


def _recommendation(found: Mapping[str, Any]) -> list[str]:
    if chose_local(found):
        return [LOCAL_CHOSEN]
    if "recommended" not in found:
        return []
    models = ("local", "joined", "agreement", "score")
    errors = [found[key]["rmse"] for key in models if key in found]
    judges = "mean" in found and "elsewhere" not in found
    if judges and min(errors) > (1.0 - CLEAR) * found["mean"]["rmse"]:
        return [
            (
                "recommendation: none yet. On left-out labels no model is clearly better than the"
                " mean of the labels, which can be chance with few labels. Use more labels before"
                " you rely on a model. All models are saved."
            ),
            *_warnings(found),
        ]
    saved = " The local model is saved too." * ("local" in found)
    return [f"recommendation: {_advice(found)}{saved}", *_warnings(found)]


def _elsewhere(gains: Mapping[str, float]) -> str:
    least = f"{100 * min(gains.values()):+.0f} %"
    most = f"{100 * max(gains.values()):+.0f} %"
    ends = least if least == most else f"{least} … {most}"
    where = next(iter(gains)) if len(gains) == 1 else "the sites with labels"
    return f"At {where} the score's error changes by {ends} against the local model's"


def _cannot_judge(found: Mapping[str, Any]) -> str:
    """The advice of a site whose labels test no model."""
    choice = found["recommended"]
    labels = found["labels"]
    why = "The labels of this site are too few for a test, or all equal"
    if not labels:
        alone = "For other instances use the joined model. " if choice == "score" else ""
        why = f"{alone}This site has no labels, so it cannot test a model"
    elif "elsewhere" in found:
        why = f"This site cannot judge: it has {labels} labels, and a test needs {LABELS_TO_JUDGE}"
    return f"{USE[choice]}. {why}."


def _advice(found: Mapping[str, Any]) -> str:
    choice, labels = found["recommended"], found["labels"]
    key = "agreement" if "agreement" in found else "joined" if choice == "local" else choice
    if "elsewhere" in found or key not in found:
        return _cannot_judge(found)
    change = found[key]["change"]
    what = {"score": "the score's error is"}.get(key, "the joined model's error is")
    told = (
        f"On left-out labels {what} {100 * abs(change):.1f} %"
        f" {'larger' if change > 0.0 else 'smaller'}"
    )
    if abs(change) < CLEAR:
        return f"no clear difference. {told}; either model serves."
    if change > 0.0 and choice != "local":
        told += (
            ", which is within one standard error: joined models are better on average, so they are"
            " the default"
        )
    elif labels < LABELS_TO_JUDGE or not abs(change) > found[key]["change_se"]:
        told += f". With {labels} labels this can be chance"
    if choice == "score":
        joined, se = found["joined"]["change"], found["joined"]["change_se"]
        if (
            min(found[model]["rmse"] for model in ("local", "joined"))
            > (1.0 - CLEAR) * found["mean"]["rmse"]
        ):
            return (
                f"{USE[choice]}. {told}. For other instances no model is clearly better than the"
                " mean of the labels."
            )
        told += f". For other instances {USE[alone(found)]}"
        if abs(joined) < EQUAL:
            told += " (joined and local model are equally good)"
        elif abs(joined) <= se:
            told += f" (the difference can be chance: {100 * joined:+.1f} % ± {100 * se:.1f})"
    return f"{USE[choice]}. {told}."


def _warnings(found: Mapping[str, Any]) -> list[str]:
    """Of labels that move otherwise than the federation's predictions, and of probabilities from
    too few labels.
    """
    out, slope = list[str](), found.get("slope", 1.0)
    if slope != 1.0:
        moves = (
            f"change by {slope:.2g} where predictions with the other sites change by 1. Check their"
            " unit"
        )
        if slope == 0.0:
            moves = "fall where predictions with the other sites rise. Check their sign"
        out.append(
            f"warning: this site's labels {moves}. One in twenty sites without a fault gets this"
            " warning."
        )
    if not found.get("calibrated", True):
        needed = f"This takes {LEAST_TO_CALIBRATE} labels, at least two of each class."
        out.append(f"warning: probabilities are hardly calibrated. {needed}")
    return out


def summary_of(path: Path, model: ModelFile) -> str:
    return "\n".join([f"run {model.run} ({path})", *sentences(model.found or {}, model.target)])


def report(models: Sequence[Path]) -> dict[Path, ModelFile]:
    """One model file with findings of each run, in the order of the arguments."""
    loaded = {path: load_model(path) for path in models}
    if len(sites := sorted({model.site for model in loaded.values()})) > 1:
        raise UsageError(
            f"these models are of {len(sites)} sites ({', '.join(sites)}). A report is about one"
            " site."
        )
    runs: dict[str, Path] = {}
    for path, model in loaded.items():
        if model.found:
            runs.setdefault(model.run, path)
    if not runs:
        raise BadData(
            f"{', '.join(map(str, models))}: no report is in there. A local model has none: give"
            " the joined model of the same run (model.coreg). It has a report if the run had the"
            " additive objective or a path of couplings."
        )
    return {path: loaded[path] for path in runs.values()}
