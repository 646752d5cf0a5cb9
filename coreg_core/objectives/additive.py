"""Additive: the sites' functions add up, and a few exchanges of second moments train them in closed
form.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf
from typing import Annotated, ClassVar, Literal, TypeAlias

from annotated_types import Ge, Le, Len

from coreg_core.objectives.setting import Kind, Setting, Statement
from coreg_core.shapes import Shape

KernelName: TypeAlias = Literal["gaussian", "linear"]
ClassName: TypeAlias = Annotated[str, Len(1, 100)]
Task: TypeAlias = Literal["regression", "classification"]
MOST_ADDITIVE_SITES = 38  # so that each can have five features (`coreg_core.secure.cross_products`)
MOST_FEATURES = 30  # of a site that enter the sums
MOST_OWN = 60  # that a site keeps for itself
SUMMARY = 17  # bytes before those of each target
OF_TARGET = 16  # bytes, before the flags
MOST_CLASSES = 20
# Of a message of cross products: rows beyond the individuals, columns of the secret.
_RANDOM_ROWS = 15_376
_SECRET_ROWS = 3_328
_SUMMED_FEATURES = 256  # of all sites at most, since each meets at most 448 columns of others


@dataclass(frozen=True)
class Additive(Statement):
    """Sites learn parts that add up, each of its own columns, from one exchange of second
    moments.
    """

    kernel: KernelName = "gaussian"
    task: Task = "regression"
    rows_per_feature: Annotated[int, Ge(5), Le(1000)] = 10
    noise: Annotated[float, Ge(0), Le(1)] = 0.01
    label_noise: Annotated[float, Ge(0), Le(10)] = 0.5
    # Local differential privacy of labels, in place of the noise: of a yes/no target, and of
    # numbers with a range.
    label_epsilon: Annotated[float, Ge(0.1), Le(50)] = 4.0
    label_range: Annotated[tuple[float, ...], Len(0, 2)] = ()
    least_labels: Annotated[int, Ge(3), Le(100_000)] = 20
    least_rows: Annotated[int, Ge(10), Le(100_000)] = 150
    # Of a classification with more than two, in this order.
    classes: Annotated[tuple[ClassName, ...], Len(0, MOST_CLASSES)] = ()
    share_gain: bool = True  # with the members, for sites whose own labels cannot judge

    @property
    def targets(self) -> int:
        """Columns of labels: one for numbers and for yes/no, else one for each class."""
        return max(len(self.classes), 1)

    name = "additive"
    called = "an additive training"
    attempts = 3  # each opens other sums over the same rows
    usual = "5, or 6 with private rows"
    questions: ClassVar[Mapping[str, Kind]] = {
        "summary": Kind(
            "labelled individuals",
            "which shared individuals this site has a label of, level and deviation of its noisy"
            " labels, the largest row norm of its features, and the number of its private rows",
            "in the scalars",
        ),
        "announce": Kind(
            "cross products", "this site's message of cross products: alone it discloses nothing"
        ),
        "sums": Kind(
            "second moments",
            "this site's words of the second moments of all sites' features and labels, with noise,"
            " and a share of such moments for each other site alone",
            "in the vectors",
        ),
        "private": Kind(
            "private rows",
            "sums over this site's private labelled rows with features of all sites, partly"
            " predicted, with noise",
            "in the vectors",
        ),
        "parts": Kind(
            "verdicts",
            "this site's part of the score, with noise, of each other site's labelled shared"
            " individuals, for that site alone; if every site's policy has scoring = true, of"
            " individuals without a label too",
            "in the vectors",
        ),
        "gain": Kind(
            "gains",
            "by how much the score's error is smaller or larger than the local model's at this"
            " site's labels, rounded to 5 %",
            "in the scalars",
        ),
    }

    def fault(self, plan: Setting) -> str | None:
        if plan.masked and len(plan.sites) > MOST_ADDITIVE_SITES:
            return (
                f"{len(plan.sites)} sites: an additive training has at most"
                f" {MOST_ADDITIVE_SITES}. More sites can agree (agreement)."
            )
        if self.label_range and not (self.task == "regression" and 0.0 < self.span < inf):
            return (
                "label_range is of a target of numbers: the lowest label, and a higher one. A"
                " yes/no target has none."
            )
        return self._of_classes() or super().fault(plan)

    @property
    def private_labels(self) -> bool:
        """Whether `label_epsilon` holds for the labels that leave a site."""
        return self.task == "classification" or bool(self.label_range)

    @property
    def span(self) -> float:
        """The length of `label_range`."""
        return self.label_range[-1] - self.label_range[0]

    def _of_classes(self) -> str | None:
        """What is wrong with the classes, or None."""
        if not self.classes:
            return None
        if self.task != "classification":
            return 'classes: the task is not "classification".'
        if not 3 <= len(set(self.classes)) == len(self.classes) <= MOST_CLASSES:
            return (
                f"classes: three to {MOST_CLASSES} different ones are needed. With two, leave them"
                " out: each site names the positive value of its target."
            )
        return None

    def target_fault(self, positive: str) -> str | None:
        if self.classes and positive:
            return (
                "this site declares a yes/no target (positive), and the plan has the classes"
                f" {', '.join(self.classes)}. Leave `positive` out."
            )
        if self.task == "classification" or not positive:
            return None
        return (
            "this site declares a yes/no target (positive), and the plan's task is regression. The"
            ' study needs task = "classification" in [model], or this site no `positive`.'
        )

    def shape(self, kind: str, shared: int, sites: tuple[str, ...]) -> Shape:
        M = len(sites)
        K = self.targets
        D = min(MOST_FEATURES * M, _SUMMED_FEATURES)
        match kind:
            case "summary":
                return Shape(to_all=SUMMARY + OF_TARGET * K + (shared + 7) // 8)
            case "announce":
                encrypted = MOST_OWN * (shared + _RANDOM_ROWS)
                projected = (2 * MOST_FEATURES + 1 + K) * _SECRET_ROWS
                return Shape(to_all=8 * (encrypted + projected))
            case "parts":
                return Shape(to_each=dict.fromkeys(sites, 8 * shared * K))
            case "gain":
                return Shape(to_all=1)
            case _:  # words of P and C, b, sums by owner, halves of scalars; a share for each site
                words = D * (D + 1) + K * D + M * D + 2 * K * (M + 1) + 2 * M
                shares = dict.fromkeys(sites, 4 * MOST_FEATURES * MOST_OWN)
                return Shape(words, to_each=shares if kind == "sums" else {})

    def method(self, plan: Setting) -> str:  # noqa: ARG002
        target = ""
        if self.task == "classification":
            target = ", a yes/no target"
        if self.classes:
            target = f", the classes {', '.join(self.classes)}"
        return (
            "additive: the score of an instance is a sum of one part of each site, from sums of"
            f" products of the sites' columns; {self.kernel} features{target},"
            f" {self.rows_per_feature} labelled rows for each, noise {self.noise:g},"
            f" {self._labels()}"
        )

    def _labels(self) -> str:
        """How a site changes its labels before they leave."""
        if not self.private_labels:
            return f"noise on labels {self.label_noise:g}"
        how = "some of them changed"
        if self.label_range:
            how = f"clipped to {self.label_range}"
        return f"labels with local differential privacy of ε = {self.label_epsilon:g}, {how}"

    def leaves(self, shared: int) -> str:
        gain = "; to the members: the gain of the score here, rounded to 5 %"
        return (
            f"second moments of this site's features and labels ({shared} shared instances), with"
            f" noise, {self._labels()}; to the members: which of these instances it has labels"
            " of, level and deviation of these labels, the largest row norm of its features, the"
            " number of its private rows; to each other site alone: parts of the score of that"
            " site's labelled instances and, if every site's policy has scoring = true, of"
            f" instances without a label{gain if self.share_gain else ''}"
        )

    def computable(self, plan: Setting, both: int) -> str:  # noqa: ARG002
        limit = ""
        if self.private_labels:
            limit = (
                ". The first release of a label changes the odds of any guess of it at most by a"
                f" factor of e^ε = {exp(self.label_epsilon):.3g}. Each correction, target and site"
                " that labels the individual adds ε, as does a plan with another ε or range. Which"
                " individuals have a label, and that one was corrected, is public"
            )
        return (
            f"which instances this site has labels of ({both}); a part of each label and row;"
            " a member that lies, or all others together, can compute much of the rows and the"
            f" noisy labels (docs/concepts/privacy.md){limit}"
        )


IN_MEMORY = Additive(rows_per_feature=8, noise=0.0, label_noise=0.0)
