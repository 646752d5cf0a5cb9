"""Agreement (coRLSR): the sites' functions are pulled together on the shared instances, in rounds
of predictions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from annotated_types import Len

from coreg_core.objectives.setting import Kind, Setting, Statement
from coreg_core.shapes import SCALAR_WORDS, Shape
from coreg_core.terms import Count, Natural, NotNegative, Positive

Form: TypeAlias = Literal["exact", "semi-parametric", "linear"]
PlanKernel: TypeAlias = Literal["gaussian", "linear"]
LabelUnits: TypeAlias = Literal["centred", "standardised"]
MOST_COLUMNS = 64
SIZES = 3  # Σ b_v⁸, Σ ‖y_v‖², Σ n_v; then Σ 1/(1 + μ b_v) of each column


@dataclass(frozen=True)
class Agreement(Statement):
    """The paper's objective, coRLSR: functions are pulled together on the shared instances."""

    form: Form = "exact"  # the span of each f_v
    kernel: PlanKernel = "gaussian"
    # σ and ν, or a rule that each site evaluates.
    bandwidth: Literal["paper", "median", "loo"] | Positive = "paper"
    ridge: Literal["paper", "loo"] | Positive = "paper"
    # Up to so many labelled rows span the semi-parametric form; else so many, drawn by seed.
    landmarks: Count = 1000
    seed: Natural = 0
    # λ, one for each column.
    coupling: Annotated[tuple[NotNegative, ...], Len(1, MOST_COLUMNS)] = (0.01,)
    label_units: LabelUnits = "centred"

    name = "agreement"
    questions: ClassVar[Mapping[str, Kind]] = {
        "sizes": Kind(
            "preliminary",
            "a bound on this site's features, the size of its label column, rounding: a few"
            " numbers",
            "in the scalars",
        ),
        "respond affine": Kind(
            "", "this site's own predictions for the shared instances", "in the vectors"
        ),
        "respond linear": Kind("", "their response to a change"),
    }

    def fault(self, plan: Setting) -> str | None:  # noqa: ARG002
        return None

    def target_fault(self, positive: str) -> str | None:
        if not positive:
            return None
        return (
            "this site declares a yes/no target (positive). Use the additive objective with task = "
            "classification."
        )

    def shape(self, kind: str, shared: int, sites: tuple[str, ...]) -> Shape:  # noqa: ARG002
        columns = len(self.coupling)
        if kind == "sizes":
            return Shape(summed=SCALAR_WORDS * (SIZES + columns))
        return Shape(summed=shared * columns)

    def most_answers(self, plan: Setting) -> int:
        """One a round and two before."""
        return self.attempts * (plan.iteration.max_rounds + 2)

    def method(self, plan: Setting) -> str:
        couplings = ", ".join(f"{c:g}" for c in self.coupling)
        return (
            "agreement (co-regularised least squares): each site keeps its own model, and a"
            f" penalty pulls the models' predictions on the shared instances together; {self.form}"
            f" form, {self.kernel} kernel, coupling {couplings}, {plan.iteration.name}, at most"
            f" {plan.iteration.max_rounds} rounds"
        )

    def leaves(self, shared: int) -> str:
        return (
            f"this site's predictions for the {shared} shared instances; also the number of its"
            " labels and the size of its label column"
        )

    def computable(self, plan: Setting, both: int) -> str:
        """See `Statement.computable`, and docs/concepts/privacy.md, "Agreement"."""
        causes = {
            "sums over two sites": plan.membership.min_sites < 3,
            "sums over several sets of sites": plan.privacy.membership_changes,
            "a path of couplings": len(self.coupling) > 1,
            "Algorithm 1": plan.iteration.name == "block-coordinate-descent",
        }
        disclosing = [cause for cause, holds in causes.items() if holds]
        sentence = (
            "the sums; by algebra, nothing of a single site, unless another run with other terms,"
            " rows or labels sums the same instances"
        )
        if disclosing:
            sentence = f"this site's predictions for the shared instances ({', '.join(disclosing)})"
        if "linear" in (self.form, self.kernel):
            sentence += (
                "; whether a guessed column is a combination of all sites' columns, because the"
                " kernel is linear"
            )
        if both:
            sentence += (
                f"; about as well as the joined scores predict them: the labels of {both} labelled"
                " individuals that are shared"
            )
        return sentence
