"""The disclosure of an answer as a phrase for operators, and whether the answer depends on labels.

The ledger writes them beside every answer; docs/concepts/threat-model.md explains them in detail.
"""

from typing import Literal, TypeAlias

from coreg_core.computation.rounds import Round

Labels: TypeAlias = Literal["none", "in the scalars", "in the vectors"]
# Of each objective: question, disclosure, and where the answer depends on labels.
PHRASES: dict[str, dict[str, tuple[str, Labels]]] = {
    "additive": {
        "summary": (
            "which shared individuals this site has a label of, level and deviation of its noisy labels, the largest row norm of "
            "its features, and the number of its private rows",
            "in the scalars",
        ),
        "announce": ("this site's message of cross products: alone it discloses nothing", "none"),
        "sums": (
            "this site's words of the second moments of all sites' features and labels, with noise, and a share of such moments "
            "for each other site alone",
            "in the vectors",
        ),
        "private": (
            "sums over this site's private labelled rows with features of all sites, partly predicted, with noise",
            "in the vectors",
        ),
        "parts": (
            "this site's part of the score, with noise, at each other site's labelled shared individuals, for that site alone",
            "in the vectors",
        ),
    },
    "agreement": {
        "respond affine": ("this site's own predictions for the shared instances", "in the vectors"),
        "respond linear": ("their response to a change", "none"),
        "sizes": (
            "a bound on this site's features, the size of its label column, rounding: a few numbers",
            "in the scalars",
        ),
    },
    "scoring": {
        "records": (
            "which of the individuals to score this site has a record of, and the name of its model",
            "none",
        ),
        "scores": (
            "this site's part of each score, for the receivers alone, who read the sum over the sites",
            "in the vectors",
        ),
    },
    "alignment": {
        "publish": ("a public key for this alignment, and the number of this site's ids as a class", "none"),
        "pass": ("a padded list of ids as points that no single site can compute, sealed for the next site", "none"),
        "take": ("a confirmation that the site received its own list: no data", "none"),
        "canaries": ("a digest of this site's canaries: no id", "none"),
        "tally": ("fingerprints of this site's ids, as a part of the sum over all sites", "none"),
    },
}
_OF = {kind: found for phrases in PHRASES.values() for kind, found in phrases.items()}


def kind_of(asked: Round) -> str:
    """The question's kind, as in docs/reference/protocol.md."""
    question = asked.question
    return f"{question.stage} {question.part}" if question.stage == "respond" else question.stage


def words(asked: Round) -> str:
    """The disclosure of the answer to this question."""
    return _OF[kind_of(asked)][0]


def labels_in(asked: Round) -> Labels:
    """The parts of the answer that depend on this site's labels."""
    return _OF[kind_of(asked)][1]
