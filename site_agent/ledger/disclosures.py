"""What an answer of the additive objective tells, in words that an operator understands, and whether labels are in it.

The ledger writes them beside every answer; docs/concepts/threat-model.md says the same at length.
"""

from typing import Literal, TypeAlias

from coreg_core.additive.model.terms import Residuals
from coreg_core.additive.question_types import Ask, Question
from coreg_core.computation.rounds import Round

_WORDS = {
    Ask.LABELS: "how many labels this site has, and their sum",
    Ask.SPREAD: "the sum of squared distances of this site's labels from the federation's mean",
    Ask.SCORE: "what this site's own model predicts for each shared instance, weighted by how well it predicts",
    Ask.SMOOTHER: "this site's reading of the shared instances along random signs: no label",
    Ask.TRACES: "two numbers: how large this site's part is against its start, and how many directions its labels determine",
    Ask.SMOOTHED: "this site's reading of one vector, for the certificate: no label",
    Ask.GRADIENT: "two numbers for the certificate: the size of a gradient, and of this site's features",
    Ask.JOINT: "how well scoring together predicts this site's left-out labels: a number a trial and fold",
    Ask.FORECAST: "squared errors on left-out labels, joined and alone, how many labels, and which model serves this site best",
    Ask.TOGETHER: "what this site's model says of each instance that is scored together: its part of the score",
    Ask.MODEL: "nothing: the site was told the point that its model is taken at",
}
_AFFINE = "this site's part of the score, its explained residuals, smoothed, and their sum, with the labels in them"
_LINEAR = "the same without the labels: how this site would answer a change"
# Grouped and open residuals are read where they stand: what is smoothed above is then told of the labelled instances themselves.
_STANDING: dict[Residuals, str] = {
    "grouped": "how its labels' group means are explained, group by group, with them which shared instances are labelled and how "
    "they are grouped",
    "open": "its residual at every labelled instance, from which every label can be computed, and which instances these are",
}
_IN_SCALARS = (Ask.LABELS, Ask.SPREAD, Ask.TRACES, Ask.JOINT, Ask.FORECAST)
# Where labels are in an answer. What noise and prior were tuned to with them is in every later answer, and is not counted.
Labels: TypeAlias = Literal["none", "in the scalars", "in the vectors"]


_AGREEMENT = {
    "labels": "how many labels this site has",
    "sizes": "a bound on this site's features, the size of its label column, rounding: a few numbers",
    "score": _WORDS[Ask.TOGETHER],
}


def kind_of(asked: Round) -> str:
    """The question's kind, as docs/reference/protocol.md has it."""
    question = asked.question
    return (
        f"{question.ask.name} {question.part}"
        if isinstance(question, Question)
        else f"{question.stage} {question.part}"
    )


def words(asked: Round, residuals: Residuals = "smoothed") -> str:
    """What the answer to this question tells, under a plan that has such residuals go out."""
    question = asked.question
    if not isinstance(question, Question):
        told = {"affine": "this site's own predictions for the shared instances", "linear": "how they answer a change"}
        return _AGREEMENT.get(question.stage, told[question.part])
    standing = residuals != "smoothed"
    if standing and question.ask in (Ask.SMOOTHER, Ask.SMOOTHED):
        grouped = " and how they are grouped" if residuals == "grouped" else ""
        return f"which shared instances are labelled at this site{grouped}: no label"
    if standing and question.ask is Ask.FIXED_POINT and question.part == "affine":
        return f"this site's part of the score, {_STANDING[residuals]}; their sum"
    if question.ask is Ask.FIXED_POINT:
        return _AFFINE if question.part == "affine" else _LINEAR
    return _WORDS[question.ask]


def labels_in(asked: Round) -> Labels:
    """Where this site's labels are in the answer."""
    question = asked.question
    if not isinstance(question, Question):
        in_vectors = question.stage == "score" or (question.stage == "respond" and question.part == "affine")
        return "in the vectors" if in_vectors else "none" if question.stage == "respond" else "in the scalars"
    if question.ask in _IN_SCALARS:
        return "in the scalars"
    affine = question.ask is Ask.FIXED_POINT and question.part == "affine"
    return "in the vectors" if affine or question.ask in (Ask.SCORE, Ask.TOGETHER) else "none"
