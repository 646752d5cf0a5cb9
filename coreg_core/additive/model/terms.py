r"""The terms of a plan for the additive objective, with their defaults and limits.

    J(w, a) = Σ_v r_vᵀ N_v⁻¹ r_v + Σ_v τ_v⁻² ‖w_v‖² + a²/c,    r_v = y_v − a − Ψ_v w_v − S_v s,    N_v = σ_v²I + κ11ᵀ
    (docs/research/mathematics.md)

Limits are annotations, as in `coreg_core.protocol.plan`, so that the configuration, the wire and the
documentation derive from them.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Gt, Le

from coreg_core.errors import UsageError

Rows: TypeAlias = Literal["private", "common"]
Residuals: TypeAlias = Literal["smoothed", "grouped", "open"]
Targets: TypeAlias = Literal["federation", "raw"]
Aim: TypeAlias = Literal["mean", "safety"]
Task: TypeAlias = Literal["regression", "classification"]

# The grid of common rows: noise and prior times these, chosen by folds of the joint score (design, 7.4).
NOISE_GRID = (1.0, 0.5, 0.25, 0.1)
PRIOR_GRID = (0.3, 1.0, 3.0)
# The most of the joined model in a site's own one: 0.8 joined + 0.2 alone harms half as many sites (design, 7.4).
BLEND = 0.8
# In deviations of the federation's labels: an answer that is not to a direction has at most this size, or the point's.
OWN = 2.0**10


@dataclass(frozen=True)
class Additive:
    """Sites learn parts that add up, each from its own columns.

    Parameters
    ----------
    kernel
        of each site's own part and of its smoother.
    bandwidth
        σ: "loo" (each site's own labels choose between two widths), or a positive number, in standard units.
    ridge
        ν, the start of tuning: "loo", or a positive number.
    landmarks
        most landmarks a site, drawn from its labelled and the shared rows.
    seed
        of landmarks, probes and folds.
    targets
        "federation" (centred and scaled by mean and deviation of all labels: three summed scalars) or "raw".
    rows
        "private", or "common": labelled instances can be among the shared ids, and folds tune scoring together.
    residuals
        "smoothed"; "grouped" (means over groups of ``group_size`` labels go out) and "open" (labels do) need common
        rows and every site's consent.
    group_size
        k of grouped residuals.
    intercept_prior
        c.
    random_intercept
        κ: the variance of each site's own offset of its labels, in units of the federation's label variance ("raw": of squared
        labels). The offset is estimated with the part, and stays at the site. 0: none.
    aim
        how a site blends its own model (`coreg_core.additive.model.blend`): "mean" for the smallest error on average, "safety"
        for the fewest sites that lose.
    task
        "regression", or "classification": labels are 0 and 1 at every site, and models state probabilities. The training is the
        same, least squares on the labels.
    tuning_steps
        of the evidence; 0 keeps each site's own start, with less noise and a bounded prior.
    probes
        random columns beside the labels, for the traces.
    tolerance
        of a tuning step, and ...
    final_tolerance
        ... of the final solve: ‖T(x) − x‖ relative to ‖T(0)‖.
    folds
        of common rows and forecasts.
    forecast
        after the training, train folds with rows left out at every site at once, so that each site sees its gain from
        joining.
    max_rounds
        rounds of vectors in one solve.
    memory
        bytes that the basis of a solve may take at each site.
    operator_norm_bound
        B, at least κ of any site (`AdditiveView.stretch`), and so the norm of its answer to a point of norm 1 (measured: 12 to
        22 600). It scales the sums' fixed point and limits answers, and a site with a larger κ refuses to answer.
    """

    kernel: Literal["gaussian", "laplacian", "linear"] = "gaussian"
    bandwidth: Literal["loo"] | Annotated[float, Gt(0)] = "loo"
    ridge: Literal["loo"] | Annotated[float, Gt(0)] = "loo"
    landmarks: Annotated[int, Ge(1), Le(2**31 - 1)] = 100
    seed: Annotated[int, Ge(0), Le(2**31 - 1)] = 0
    targets: Targets = "federation"
    rows: Rows = "private"
    residuals: Residuals = "smoothed"
    group_size: Annotated[int, Ge(3), Le(2**31 - 1)] = 3
    intercept_prior: Annotated[float, Gt(0)] = 1.0
    random_intercept: Annotated[float, Ge(0)] = 0.1
    aim: Aim = "mean"
    task: Task = "regression"
    tuning_steps: Annotated[int, Ge(0), Le(100)] = 6
    probes: Annotated[int, Ge(1), Le(64)] = 16
    tolerance: Annotated[float, Gt(0)] = 1e-3
    final_tolerance: Annotated[float, Gt(0)] = 1e-5
    folds: Annotated[int, Ge(2), Le(100)] = 5
    forecast: bool = False
    max_rounds: Annotated[int, Ge(2), Le(2**31 - 1)] = 200
    memory: Annotated[int, Ge(1)] = 2**30
    operator_norm_bound: Annotated[float, Gt(0)] = 2.0**20

    def __post_init__(self) -> None:
        if self.residuals != "smoothed" and self.rows != "common":
            raise UsageError(
                f'residuals="{self.residuals}" reads the others\' sum at labelled rows, which needs rows="common": labelled '
                "instances among the shared ones."
            )
        if self.task == "classification" and self.residuals == "grouped":
            raise UsageError(
                'residuals="grouped" with task="classification": a mean of 0 or 1 discloses each label of its group.'
            )
        if self.forecast and self.residuals != "smoothed":
            raise UsageError(
                f'forecast=true needs residuals="smoothed", not "{self.residuals}": groups are made once, of all rows.'
            )
        for name in ("intercept_prior", "tolerance", "final_tolerance", "operator_norm_bound"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise UsageError(f"{name}={value!r}: needs a finite number above 0.")
        if not (isfinite(self.random_intercept) and self.random_intercept >= 0):
            raise UsageError(f"random_intercept={self.random_intercept!r}: needs a finite number of at least 0.")


def tries_grid(terms: Additive) -> bool:
    """Whether the grid chooses noise and prior by the joint score: with common rows and smoothed residuals.

    Grouped and open residuals are read where they stand: their system is right as tuned.
    """
    return terms.rows == "common" and terms.residuals == "smoothed"


def vectors_of(terms: Additive, n_unlabelled: int) -> tuple[int, int]:
    """The most rows and columns of any vector: 3m + 1 rows where the probes' sum stands below a point.

    Directions have twice as many columns as solutions, because s and q travel apart.
    """
    grid = len(NOISE_GRID) * len(PRIOR_GRID) * terms.folds if tries_grid(terms) else 0
    folds = terms.folds if terms.forecast else 0
    return 3 * n_unlabelled + 1, 2 * max(1 + terms.probes, grid, folds)
