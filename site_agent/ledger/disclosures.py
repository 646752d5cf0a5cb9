"""The disclosure of an answer as a phrase for operators, and whether the answer depends on labels.

The ledger writes them beside every answer; docs/concepts/threat-model.md explains them in detail.
"""

from typing import Literal, TypeAlias

from coreg_core.additive.model.terms import Residuals
from coreg_core.additive.question_types import Ask, Question
from coreg_core.computation.rounds import Round

ADDITIVE = {
    Ask.LABELS: "the number of this site's labels, and their sum",
    Ask.SPREAD: "the sum of squared distances of this site's labels from the federation's mean",
    Ask.SCORE: "the prediction of this site's own model for each shared instance, weighted by its quality",
    Ask.SMOOTHER: "this site's smoothing of random signs on the shared instances: no label",
    Ask.TRACES: "two numbers: the size of this site's part relative to its start, and the number of directions that its "
    "labels determine",
    Ask.SMOOTHED: "this site's smoothing of one vector, for the certificate: no label",
    Ask.GRADIENT: "two numbers for the certificate: the size of a gradient, and of this site's features",
    Ask.JOINT: "the error of scoring together on this site's left-out labels: a number for each trial and fold",
    Ask.FORECAST: "squared errors on left-out labels, joined and alone, the number of labels, and the best model for this site",
    Ask.TOGETHER: "the prediction of this site's model for each instance that is scored together: its part of the score",
    Ask.MODEL: "a confirmation that the site received the solution for its model: no data",
}
RESPONSES = {
    "affine": "this site's own predictions for the shared instances",
    "linear": "their response to a change",
}
AFFINE = "this site's part of the score, its explained residuals, smoothed, and their sum; they depend on the labels"
LINEAR = "this site's response to a change of the question, without its labels"
# Grouped and open residuals are not smoothed: they refer to the labelled instances themselves.
_STANDING: dict[Residuals, str] = {
    "grouped": "its explained residuals as means over groups of labels; they reveal which shared instances are labelled and "
    "how they are grouped",
    "open": "its residual at every labelled instance, from which every label can be computed; they reveal which instances "
    "are labelled",
}
_IN_SCALARS = (Ask.LABELS, Ask.SPREAD, Ask.TRACES, Ask.JOINT, Ask.FORECAST)
# Where an answer depends on labels. Every later answer also depends on them through the tuned noise and prior; not counted.
Labels: TypeAlias = Literal["none", "in the scalars", "in the vectors"]


OTHERS = {  # of the agreement, of scoring and of alignments
    "sizes": "a bound on this site's features, the size of its label column, rounding: a few numbers",
    "score": ADDITIVE[Ask.TOGETHER],
    "publish": "a public key for this alignment, and the number of this site's ids as a class",
    "pass": "a padded list of ids as points that no single site can compute, sealed for the next site",
    "take": "a confirmation that the site received its own list: no data",
    "canaries": "a digest of this site's canaries: no id",
    "tally": "fingerprints of this site's ids, as a part of the sum over all sites",
}


def kind_of(asked: Round) -> str:
    """The question's kind, as in docs/reference/protocol.md."""
    question = asked.question
    return (
        f"{question.ask.name} {question.part}"
        if isinstance(question, Question)
        else f"{question.stage} {question.part}"
    )


def words(asked: Round, residuals: Residuals = "smoothed") -> str:
    """The disclosure of the answer to this question, under a plan with such residuals."""
    question = asked.question
    if not isinstance(question, Question):
        return OTHERS.get(question.stage, RESPONSES[question.part])
    standing = residuals != "smoothed"
    if standing and question.ask in (Ask.SMOOTHER, Ask.SMOOTHED):
        grouped = " and how they are grouped" if residuals == "grouped" else ""
        return f"which shared instances are labelled at this site{grouped}: no label"
    if standing and question.ask is Ask.FIXED_POINT and question.part == "affine":
        return f"this site's part of the score, {_STANDING[residuals]}; their sum"
    if question.ask is Ask.FIXED_POINT:
        return AFFINE if question.part == "affine" else LINEAR
    return ADDITIVE[question.ask]


def labels_in(asked: Round) -> Labels:
    """The parts of the answer that depend on this site's labels."""
    question = asked.question
    if not isinstance(question, Question):
        in_vectors = question.stage == "score" or (question.stage == "respond" and question.part == "affine")
        in_scalars = question.stage == "sizes"
        return "in the vectors" if in_vectors else "in the scalars" if in_scalars else "none"
    if question.ask in _IN_SCALARS:
        return "in the scalars"
    affine = question.ask is Ask.FIXED_POINT and question.part == "affine"
    return "in the vectors" if affine or question.ask in (Ask.SCORE, Ask.TOGETHER) else "none"
