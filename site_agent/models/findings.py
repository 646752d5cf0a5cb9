"""Does joining pay here? The findings of one run at this site, as plain values for a model file.

All errors are from labels that the models had not seen. Only the weight of the blend is chosen on
them. `site_agent.models.report` has the sentences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from coreg_core.additive.check import WIDER, Choice
from coreg_core.additive.site_model import SiteModel
from coreg_core.additive.worth import Worth
from coreg_core.agreement.left_out import PathChoice
from coreg_core.arrays import Arr
from coreg_core.evaluation import (
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
    JudgedModels,
    Result,
)
from site_agent.models.figures import Values, of_classes, of_residuals, of_several_classes

# The models that have errors, by their keys in a file, with their names in a report.
ROWS = {
    "mean": "mean of labels",
    "local": "local model",
    "agreement": "joined, own λ",
    "joined": "joined model",
    "score": "scored together",
}
ByName: TypeAlias = Mapping[str, float]  # of sites, or of columns
MOST_POINTS = 500  # of left-out labels that are kept for a picture


@dataclass(frozen=True)
class Findings:
    """The findings of one run. None: the run, or its objective, does not tell.

    ``models``: the figures of each model, by the keys of `ROWS`. ``elsewhere``: of a site whose
    labels are too few to judge, the change of the score's error at the sites that can.
    """

    labels: int = 0
    recommended: Choice | None = None
    models: Mapping[str, Values] = field(default_factory=dict)
    slope: float | None = None  # of the labels on the federation's predictions
    elsewhere: ByName | None = None
    left_out: Values | None = None  # labels and residuals of single rows, for a picture
    calibrated: bool | None = None
    auc: Mapping[str, float | None] | None = None
    classes: Sequence[str] | None = None
    partners: Sequence[Values] | None = None  # the site whose columns bring most is the first
    coefficients: Sequence[Values] | None = None  # of a linear kernel
    noise: float | None = None
    r2: float | None = None
    chosen: float | None = None  # λ of an agreement
    columns: ByName | None = None  # the importance of each own column
    columns_by: str | None = None
    scored: int | None = None  # individuals that the training's end scored
    training: str | None = None  # which one it was with these labels
    words_compared: bool | None = None
    of_two: bool | None = None  # the run had two sites

    def to_json(self) -> Values:
        """The values that are known; those of each model beside the others."""
        values = {name: value for name, value in vars(self).items() if value is not None}
        return {**values.pop("models"), **values}

    @classmethod
    def from_json(cls, values: Values) -> "Findings":
        """The inverse of `to_json`."""
        models = {key: values[key] for key in ROWS if key in values}
        others = {key: value for key, value in values.items() if key not in ROWS}
        return cls(models=models, **others)

    @property
    def chose_local(self) -> bool:
        """Whether the site's labels chose λ = 0, so that the kept model is the local model."""
        return self.chosen == 0.0

    @property
    def shown(self) -> dict[str, Values]:
        """The figures of each model by its name. Where the labels chose λ = 0, "agreement" is the
        error of the choice, and the local model is kept.
        """
        models = dict(self.models)
        if self.chose_local:
            models.pop("agreement", None)
        return {name: models[key] for key, name in ROWS.items() if key in models}

    @property
    def alone(self) -> Literal["local", "joined"]:
        """The model that the report advises for predictions without the other sites."""
        joined = self.models.get("joined", {})
        worse = self.recommended == "score" and joined.get("change", -1.0) >= 0.0
        if worse or self.recommended == "local":
            return "local"
        return "joined"


def of(result: Result, preprocessing: Preprocessing) -> Findings | None:
    """The findings of a training; None if nothing was judged."""
    match result:
        case AdditiveResult():
            findings = replace(of_additive(result), partners=partners_of(result.partners))
            return _with_slopes(findings, result.model, preprocessing)
        case AgreementResult() if result.choice is not None and 0.0 in result.couplings:
            return of_path(result.choice, result.couplings, result.divisor)
        case _:
            return None


def of_additive(result: AdditiveResult) -> Findings:
    if result.classes:
        return of_class_training(result.judged, result.gains, result.classes)
    return of_training(result.judged, result.gains, classes=bool(result.probabilities))


def of_training(
    judged: JudgedModels, gains: ByName | None = None, *, classes: bool = False
) -> Findings:
    """Findings of an additive training; ``gains``: of the score at other sites, ``classes``: of a
    yes/no target.
    """
    verdict = judged.verdict
    y = judged.labels
    models = dict[str, Values]()
    for key, residuals in verdict.left_out.items():
        baseline = None
        if key != "local":
            baseline = verdict.left_out["local"]
        models[key] = of_residuals(residuals, y, baseline, wider=WIDER)
        if classes:
            labels = y[: len(residuals)]
            scores = labels - residuals
            probabilities = fit_probability(scores, labels).of(scores)
            models[key] |= of_classes(probabilities, labels)
    findings = Findings(
        labels=len(y),
        recommended=verdict.recommended,
        models=models,
        slope=verdict.slope,
        elsewhere=_elsewhere(gains, y),
    )
    if classes:
        areas = {key: figures["auc"] for key, figures in models.items()}
        findings = replace(findings, calibrated=can_calibrate(y), auc=areas)
    if findings.elsewhere and max(findings.elsewhere.values()) < 0.0:
        findings = replace(findings, recommended="score")
    if not models:
        return findings
    n = len(y)
    mean = of_residuals((y - y.mean()) * (n / (n - 1)), y)
    shown = min(MOST_POINTS, *map(len, verdict.left_out.values()))
    points = {key: residuals[:shown].tolist() for key, residuals in verdict.left_out.items()}
    left_out = {"labels": y[:shown].tolist(), "residuals": points}
    return replace(findings, models={"mean": mean, **models}, left_out=left_out)


def of_class_training(judged: JudgedModels, gains: ByName, classes: Sequence[str]) -> Findings:
    """Findings of a training of several classes; errors are roots of Brier scores."""
    y = judged.labels
    left = judged.left_out_scores(classes)
    models = dict[str, Values]()
    baseline: Arr | None = None
    for key in ROWS:
        if key not in left:
            continue
        scores = left[key]
        labels = y[: len(scores)]
        probabilities = fit_class_probabilities(scores, labels).of(scores)
        residuals = brier_residuals(probabilities, labels)
        models[key] = of_residuals(residuals, None, baseline, wider=WIDER)
        models[key] |= of_several_classes(probabilities, labels, classes)
        if key == "local":
            baseline = residuals
    choices: list[Choice] = ["local", "joined", "score"]
    recommended: Choice = "score"
    if models:
        judged_models = (key for key in choices if key in models)
        recommended = min(judged_models, key=lambda key: float(models[key]["rmse"]))
        shares = np.bincount(y.astype(np.int64), minlength=len(classes)) / len(y)
        mean = brier_residuals(np.tile(shares, (len(y), 1)), y)
        models = {"mean": of_residuals(mean, None), **models}
    return Findings(
        labels=len(y),
        recommended=recommended,
        models=models,
        slope=1.0,
        elsewhere=_elsewhere(gains, y),
        calibrated=True,
        classes=list(classes),
    )


def _elsewhere(gains: ByName | None, y: Arr) -> dict[str, float] | None:
    """What the sites with labels found, of a site that has too few labels to judge."""
    if gains and len(y) < LABELS_TO_JUDGE:
        return dict(gains)
    return None


def partners_of(partners: Mapping[str, Worth | None]) -> list[Values]:
    """What each other site's columns bring to the score, the largest first; without values where
    only the order is known.
    """
    rows = []
    for site, worth in partners.items():
        row: Values = {"site": site}
        if worth:
            row |= vars(worth)
        rows.append(row)
    return rows


def _with_slopes(findings: Findings, model: object, preprocessing: Preprocessing) -> Findings:
    """With kernel = "linear": this site's coefficients in the units of its columns, with standard
    errors and p-values; the noise and R².
    """
    if not isinstance(model, SiteModel):
        return findings
    estimated = model.slopes()
    if estimated is None:
        return findings
    scales = list[float]()
    for column in preprocessing.columns:
        scales += column.scales
    slopes, errors = np.asarray(estimated) / scales
    rows = zip(preprocessing.feature_names, slopes.tolist(), errors.tolist(), strict=True)
    coefficients = [
        {"column": name, "coefficient": b, "se": se, "p": p_value(b, se)} for name, b, se in rows
    ]
    return replace(
        findings,
        coefficients=coefficients,
        noise=model.noise,
        r2=1.0 - (model.noise / model.deviation_of_labels) ** 2,
    )


def of_path(choice: PathChoice, couplings: tuple[float, ...], divisor: float) -> Findings:
    """Of a path of λ with 0; all errors are on the same folds.

    The joined model stays unless its nested loss is larger by a standard error.
    """
    place = couplings.index(0.0)
    left_out = choice.left_out[place]
    labels = None
    if choice.y is not None:
        labels = choice.y * divisor
    findings = Findings(labels=len(left_out), chosen=couplings[choice.chosen])
    folds = choice.folds
    if folds is None:
        return replace(findings, models={"local": of_residuals(left_out * divisor, labels)})
    local = folds.members[place]
    beside = paired(folds.choice, local)
    alone = local * divisor
    models = {
        "mean": of_residuals(folds.mean * divisor, labels),
        "local": of_residuals(alone, labels),
        "agreement": of_residuals(folds.choice * divisor, labels, alone, wider=WIDER),
    }
    recommended: Choice = "joined"
    if beside.difference > beside.standard_error:
        recommended = "local"
    return replace(findings, models=models, recommended=recommended)
