"""Yes/no targets in the study: AUC, log loss and calibration error of each way to predict. Labels are 0 and 1.

Every model is least squares, with Platt scaling by its labelled rows, left out in turn (`coreg_core.evaluation.probability`).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float64

from benchmarks.benefit.summary import SiteOutcome
from benchmarks.papers.report import Cell, ReportTable
from coreg_core.evaluation.probability import fit_probability, quality
from coreg_core.numerics.arrays import Arr

TITLE = "Yes/no targets"
CLEAR, RARE = 0.05, 0.03  # a difference of AUC; a share of one class
METHODS = (
    "logistic regression alone", "local model", "joined model", "scored together", "checked scores", "pooled",
    "pooled, logistic loss",
)  # fmt: skip


def figures(scores: Arr, left_out: Arr, labels: Arr, truth: Arr) -> list[float]:
    """AUC, log loss and calibration error of test scores, with probabilities by the left-out ones."""
    return list(quality(fit_probability(left_out, labels[: len(left_out)]).of(scores), truth))


def logistic(
    X: Float64[Arr, "n d"], y: Float64[Arr, " n"], test: Float64[Arr, "t d"], truth: Float64[Arr, " t"]
) -> list[float]:
    """Of scikit-learn's logistic regression on the site's rows; of the share of 1 if there is one class."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    p = np.full(len(test), y.mean() if len(y) else 0.5)
    if 0.0 < p[0] < 1.0 and len(y):
        p = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y).predict_proba(test)[:, 1]
    return list(quality(p, truth))


def logistic_of(
    features: Float64[Arr, "n d"], y: Float64[Arr, " n"], test: Float64[Arr, "t d"], truth: Float64[Arr, " t"]
) -> list[float]:
    """Of a logistic loss on the same features as least squares; the ridge by folds of the log loss.
    The share of 1 if a class has fewer than two rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    folds = int(min(5, y.sum(), len(y) - y.sum()))
    if folds < 2:  # no folds hold both classes
        return list(quality(np.full(len(test), y.mean()), truth))
    asked = GridSearchCV(
        LogisticRegression(max_iter=1000), {"C": np.logspace(-3.0, 3.0, 9)}, scoring="neg_log_loss", cv=folds
    )
    p = asked.fit(features, y).predict_proba(test)[:, 1]
    return list(quality(p, truth))


def table(found: Sequence[SiteOutcome]) -> ReportTable:
    """Means over sites, then over the draws of a set, then over sets."""
    rows: list[tuple[Cell, ...]] = []
    for name, method, values, sets in means(found):
        area, loss, off = (f"{value:.3f}" for value in values)
        rows.append((name, method, area, loss, off, sets))
    header = ("regime", "method", "AUC", "log loss", "calibration error", "sets")
    return ReportTable(
        TITLE, header, tuple(rows), "AUC is better if larger, log loss and calibration error if smaller."
    )


def findings(found: Sequence[SiteOutcome]) -> list[str]:
    """A sentence for each regime."""
    by: dict[str, list[str]] = {}
    for name, method, values, _ in means(found):
        by.setdefault(name, []).append(f"{method} {values[0]:.2f}")
    out = []
    for name, areas in by.items():
        moved = _moved([site for site in judged(found) if site.regime.name == name])
        out.append(f"{name}, for a ranking: area under the ROC curve (AUC): {', '.join(areas)}. {moved}")
    return out


def judged(found: Sequence[SiteOutcome]) -> list[SiteOutcome]:
    """The sites with probabilities."""
    return [site for site in found if site.judged and site.record.get("yes_no")]


def _moved(there: Sequence[SiteOutcome]) -> str:
    """How often the joined model ranks otherwise than the local one; a note where one class is rare."""
    change = np.array([_of(s.record, "joined model")[0] - _of(s.record, "local model")[0] for s in there])
    told = (
        f"The joined model's AUC is lower than the local one's by more than {CLEAR} at {100 * np.mean(change < -CLEAR):.0f} % of "
        f"the sites, and higher at {100 * np.mean(change > CLEAR):.0f} %."
    )
    rare = min(min(share, 1.0 - share) for share in (float(s.record.get("positive", 0.5)) for s in there))
    return (
        told
        + f" Only {100 * rare:.1f} % of the test labels are of one class: events this rare were hardly studied."
        * (rare < RARE)
    )


def means(found: Sequence[SiteOutcome]) -> list[tuple[str, str, Float64[Arr, " 3"], int]]:
    """(regime, method, figures, number of sets)."""
    out = []
    for name in dict.fromkeys(site.regime.name for site in judged(found)):
        there = [site for site in judged(found) if site.regime.name == name]
        sets = dict.fromkeys(site.set for site in there)
        for method in METHODS:
            if not all(method in site.record["yes_no"] for site in there):  # jobs of an older release
                continue
            of_sets = [
                np.mean([_of(site.record, method) for site in there if site.set == each], axis=0) for each in sets
            ]
            out.append((name, method, np.mean(of_sets, axis=0), len(sets)))
    return out


def _of(record: Mapping[str, object], method: str) -> list[float]:
    kept = record["yes_no"]
    assert isinstance(kept, dict)
    values: list[float] = kept[method]
    return values
