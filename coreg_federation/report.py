"""Did joining help? The report of a training as numbers; as text it is what the command prints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from site_agent.models.figures import Values
from site_agent.models.findings import Findings
from site_agent.models.report import recommended

_NINETY_FIVE = 1.96  # deviations to each end of an interval of 95 %
MODELS = ("mean", "local", "joined", "agreement", "score")


@dataclass(frozen=True)
class ModelError:
    """The root mean squared error of one model on this site's own left-out labels.

    ``change``: relative to the local model on the same labels; None of the local model itself.
    """

    error: float
    standard_error: float
    labels: int
    change: float | None = None
    change_standard_error: float | None = None

    @property
    def change_interval(self) -> tuple[float, float] | None:
        """An interval of 95 % for ``change``; None where it is not known."""
        if self.change is None or self.change_standard_error is None:
            return None
        half = _NINETY_FIVE * self.change_standard_error
        return self.change - half, self.change + half


@dataclass(frozen=True)
class TrainingReport:
    """The report of one training at this site; ``str(report)`` is its text.

    ``errors``: by model, "mean" (of the labels), "local", "joined" or "agreement" (the joined model
    of an agreement), and "score". ``elsewhere``: of a site whose labels are too few to judge, the
    change of the score's error at the sites that can. ``areas``: under the ROC curve, of a yes/no
    target. ``partners``: "site", the one whose columns bring most to the score first, with the
    "change" of the score's error without them and its "standard_error" if more than the order is
    known. ``coefficients``: of a linear kernel.
    """

    run: str
    target: str
    labels: int
    recommended: Literal["local", "joined", "score"] | None
    errors: Mapping[str, ModelError]
    elsewhere: Mapping[str, float]
    areas: Mapping[str, float]
    partners: tuple[Values, ...]
    coefficients: tuple[Values, ...]
    sentences: tuple[str, ...] = field(repr=False)
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


def report_of(run: str, target: str, findings: Findings, text: str) -> TrainingReport:
    """The report of a run with these findings; ``text``: what `coreg-agent report` prints."""
    areas = findings.auc or {}
    return TrainingReport(
        run=run,
        target=target,
        labels=findings.labels,
        recommended=findings.recommended,
        errors={name: _error(findings.models[name]) for name in MODELS if name in findings.models},
        elsewhere=findings.elsewhere or {},
        areas={name: area for name, area in areas.items() if area is not None},
        partners=tuple(findings.partners or ()),
        coefficients=tuple(findings.coefficients or ()),
        sentences=tuple(recommended(findings)),
        text=text,
    )


def _error(about: Values) -> ModelError:
    return ModelError(
        error=about["rmse"],
        standard_error=about["se"],
        labels=int(about["rows"]),
        change=about.get("change"),
        change_standard_error=about.get("change_se"),
    )
