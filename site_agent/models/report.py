"""What `coreg-agent report` prints: the findings of a run as a table and as sentences."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from coreg_core.errors import BadData, UsageError
from coreg_core.evaluation import LEAST_TO_CALIBRATE, p_value
from site_agent.machine.results import LABELS_TO_JUDGE, AlignmentResult
from site_agent.models import explain
from site_agent.models.figures import Values, change_text, table, tenth_lines
from site_agent.models.file import ModelFile, load_model
from site_agent.models.findings import ROWS, Findings

MODELS = ("local", "joined", "agreement", "score")
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
SURE = 2.0  # standard errors: a smaller difference can be chance
NONE_YET = (
    "recommendation: none yet. On left-out labels no model is clearly better than the mean of the"
    " labels, which can be chance with few labels. Use more labels before you rely on a model. All"
    " models are saved."
)
USE = {
    "local": "stay alone",
    "joined": "keep the joined model",
    "score": (
        "score together the instances that all sites know (a scoring study of the coordinator's"
        " operator, or `coreg-agent score`)"
    ),
}


def load_reports(models: Sequence[Path]) -> dict[Path, ModelFile]:
    """One model file with findings of each run, in the order of the arguments."""
    loaded = {path: load_model(path) for path in models}
    sites = sorted({model.site for model in loaded.values()})
    if len(sites) > 1:
        raise UsageError(
            f"these models are of {len(sites)} sites ({', '.join(sites)}). A report is about one"
            " site."
        )
    runs: dict[str, Path] = {}
    for path, model in loaded.items():
        if model.findings:
            runs.setdefault(model.run, path)
    if not runs:
        raise BadData(
            f"{', '.join(map(str, models))}: no report is in there. A local model has none: give"
            " the joined model of the same run (model.coreg). It has a report if the run had the"
            " additive objective or a path of couplings."
        )
    return {path: loaded[path] for path in runs.values()}


def summary_of(path: Path, model: ModelFile) -> str:
    findings = model.findings or Findings()
    return "\n".join([f"run {model.run} ({path})", *sentences(findings, model.target)])


def sentences(findings: Findings, target: str) -> list[str]:
    out = _scores_at_the_end(findings)
    out += recommended(findings)
    out += lines(findings, target)
    out += _rows_elsewhere(findings)
    out += _partners(findings.partners or [])
    out += explain.lines(findings.columns or {}, findings.columns_by, target)
    out += _coefficients(findings, target)
    if findings.training:
        out.append(f"{findings.training} (openings in policy.toml).")
    return out


def lines(findings: Findings, target: str) -> list[str]:
    """The errors as a table under a header, and tenths of a yes/no target for the recommended
    model; none without errors.
    """
    models = findings.shown
    if not models:
        return []
    error = "root mean square error"
    of = f"{target}, in units of {target},"
    if findings.auc:
        of = f"the score for {target}, which is 0 or 1,"
    if findings.classes:
        error = "root of the Brier score"
        of = target
    left_out = max(int(figures["rows"]) for figures in models.values())
    best = findings.recommended or ""
    tenths = findings.models.get(best, {}).get("tenths")
    return [
        f"{error} of {of} on {left_out} left-out labels (± one standard error)",
        "model               error ± s.e.      change ± s.e.",
        *table(models),
        *tenth_lines(tenths, f"these labels, {ROWS.get(best)}"),
    ]


def aligned(result: AlignmentResult) -> list[str]:
    """How many of this site's ids the others know."""
    (least, most), *rest = result.known_to
    more = "".join(f", {many} to {sites} or more" for sites, many in rest)
    return [
        f"{most} of this site's ids are known to {least} or more sites{more} (this site included).",
        f"the shared set: {len(result.ids)} ids that every site knows.",
    ]


# --- what the score, partners and columns bring ---------------------------------------------------


def _scores_at_the_end(findings: Findings) -> list[str]:
    """What the training's own joint scores are worth; nothing where it ended without any."""
    if findings.scored is None:
        return []
    scored = f"scores.csv: joint scores of {findings.scored} shared individuals without a label."
    if findings.elsewhere:
        return [f"{scored} {_elsewhere(findings.elsewhere)}."]
    if "score" not in findings.models:
        return [scored]
    change = change_text(findings.models["score"])
    return [f"{scored} Their error against the local model, on left-out labels: {change}."]


def _elsewhere(gains: Mapping[str, float]) -> str:
    least = f"{100 * min(gains.values()):+.0f} %"
    most = f"{100 * max(gains.values()):+.0f} %"
    ends = least
    if least != most:
        ends = f"{least} … {most}"
    where = "the sites with labels"
    if len(gains) == 1:
        where = next(iter(gains))
    return f"At {where} the score's error changes by {ends} against the local model's"


def _rows_elsewhere(findings: Findings) -> list[str]:
    """What the score is worth at each site that can judge it, of a site whose labels cannot."""
    gains = findings.elsewhere
    if not gains or (len(gains) == 1 and findings.scored is not None):
        return []  # of one site the line of the scores has it
    listed = [f"{site} {100 * change:+.0f} %" for site, change in sorted(gains.items())]
    return [
        f"{ROWS['score']}: error against the local model at other sites, rounded to 5 %"
        " (of yes/no targets by changed labels, which mostly shows too little):"
        f" {', '.join(listed)}"
    ]


def _partners(rows: Sequence[Values]) -> list[str]:
    """The score's error without each other site's columns, or the order of the sites."""
    out = ["change of the score's error without a partner's columns (its labels stay, ± s.e.)"]
    for row in rows:
        if "change" in row:
            change = 100 * row["change"]
            error = 100 * row["standard_error"]
            out.append(f"{row['site']:<15} {change:+.0f} % ± {error:.0f}")
    if len(out) > 1:
        return out
    if len(rows) < 2:
        return []
    listed = ", ".join(row["site"] for row in rows)
    return [f"{listed}: partners by what their columns bring to the score, the most first"]


def _coefficients(findings: Findings, target: str) -> list[str]:
    """A linear regression's own coefficients, with intervals of 95 %; none for another kernel."""
    if not findings.coefficients:
        return []
    wide = max(len(row["column"]) for row in findings.coefficients)
    out = [
        f"change of the score of {target} for one unit of each column, all others fixed (± s.e., 95"
        " % interval, p)"
    ]
    for row in findings.coefficients:
        b = row["coefficient"]
        se = row["se"]
        ends = f"{b - 1.96 * se:>11.4g} to {b + 1.96 * se:<11.4g}"
        p = row.get("p", p_value(b, se))  # an older file has none
        out.append(f"{row['column']:<{wide}} {b:>11.4g} ± {se:<9.3g} {ends} {p:.3g}")
    if any("=" in row["column"] for row in findings.coefficients):
        out.append(
            "the levels of a text column are around their mean: two levels differ by the difference"
            " of their coefficients"
        )
    out.append(
        f"of all sites: R² {findings.r2:.2f}, deviation of a label from its score"
        f" {findings.noise:.4g}, noise on labels included"
    )
    return out


# --- the recommendation ---------------------------------------------------------------------------


def recommended(findings: Findings) -> list[str]:
    """The recommendation and warnings; nothing where no model was judged."""
    out = _recommendation(findings)
    if findings.of_two:
        out.append(OF_TWO)
    if findings.words_compared is False:
        out.append(UNSEEN)
    return out


def _recommendation(findings: Findings) -> list[str]:
    if findings.chose_local:
        return [LOCAL_CHOSEN]
    if findings.recommended is None:
        return []
    if findings.elsewhere is None and _none_beats_the_mean(findings, *MODELS):
        return [NONE_YET, *_warnings(findings)]
    saved = ""
    if "local" in findings.models:
        saved = " The local model is saved too."
    return [f"recommendation: {_advice(findings)}{saved}", *_warnings(findings)]


def _none_beats_the_mean(findings: Findings, *keys: str) -> bool:
    """Whether no model of these is clearly better than the mean of the labels."""
    mean = findings.models.get("mean")
    errors = [findings.models[key]["rmse"] for key in keys if key in findings.models]
    return mean is not None and min(errors) > (1.0 - CLEAR) * mean["rmse"]


def _advice(findings: Findings) -> str:
    """What to do, and the figure behind it."""
    choice = findings.recommended
    assert choice is not None
    judged: str = choice
    if choice == "local":
        judged = "joined"
    if "agreement" in findings.models:
        judged = "agreement"
    if findings.elsewhere is not None or judged not in findings.models:
        return _cannot_judge(findings)
    figures = findings.models[judged]
    change = figures["change"]
    model = "joined model"
    if judged == "score":
        model = "score"
    direction = "larger" if change > 0.0 else "smaller"
    measured = f"On left-out labels the {model}'s error is {100 * abs(change):.1f} % {direction}"
    if abs(change) < CLEAR:
        return f"no clear difference. {measured}; either model serves."
    measured += _doubt(findings, figures)
    if choice == "score":
        measured += f". For other instances {_for_other_instances(findings)}"
    return f"{USE[choice]}. {measured}."


def _doubt(findings: Findings, figures: Values) -> str:
    """How much the labels tell of this change; nothing where it is clear."""
    change = figures["change"]
    if change > 0.0 and findings.recommended != "local":
        return (
            ", which is within one standard error: joined models are better on average, so they are"
            " the default"
        )
    if findings.labels < LABELS_TO_JUDGE or not abs(change) > SURE * figures["change_se"]:
        return f". With {findings.labels} labels this can be chance"
    return ""


def _cannot_judge(findings: Findings) -> str:
    """The advice of a site whose labels test no model."""
    choice = findings.recommended
    labels = findings.labels
    assert choice is not None
    why = (
        "The labels of this site are too few for a test, are all equal, or have none of one of the"
        " study's classes"
    )
    if not labels:
        alone = ""
        if choice == "score":
            alone = "For other instances use the joined model. "
        why = f"{alone}This site has no labels, so it cannot test a model"
    elif findings.elsewhere is not None:
        why = f"This site cannot judge: it has {labels} labels, and a test needs {LABELS_TO_JUDGE}"
    return f"{USE[choice]}. {why}."


def _for_other_instances(findings: Findings) -> str:
    """The model of a site that scores together, for instances that other sites do not know."""
    if _none_beats_the_mean(findings, "local", "joined"):
        return "no model is clearly better than the mean of the labels"
    joined = findings.models["joined"]
    change = abs(joined["change"])
    beside = ""
    if change < EQUAL:
        beside = " (joined and local model are equally good)"
    elif change <= SURE * joined["change_se"]:
        beside = f" (the difference can be chance: {change_text(joined)})"
    return USE[findings.alone] + beside


def _warnings(findings: Findings) -> list[str]:
    """Of labels that move otherwise than the federation's predictions, and of probabilities from
    too few labels.
    """
    out = list[str]()
    slope = findings.slope
    if slope not in (None, 1.0):
        moves = (
            f"change by {slope:.2g} where predictions with the other sites change by 1. Check their"
            " unit"
        )
        if slope == 0.0:
            moves = "fall where predictions with the other sites rise. Check their sign"
        chance = " One in twenty sites without a fault gets this warning."
        if slope and not 0.1 <= slope <= 10.0:
            chance = " Such a factor is no chance: it is the unit here, or that of other sites."
        out.append(f"warning: this site's labels {moves}.{chance}")
    if findings.calibrated is False:
        needed = f"This takes {LEAST_TO_CALIBRATE} labels, at least two of each class."
        out.append(f"warning: probabilities are hardly calibrated. {needed}")
    return out
