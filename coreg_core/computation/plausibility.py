r"""Invariants of respond(t, μ) that hold for every honest site, whatever its data; checked on plaintext answers and on sums.

The linear part R of a site is symmetric with 0 ⪯ R ≺ I, and no larger than its b_v allows, so for every direction t

    0 ≤ tᵀRt ≤ ‖t‖² x/(1 + x),   ‖Rt‖ ≤ ‖t‖,        x = μ b_v

and over M sites 0 ≤ tᵀ(ΣR)t ≤ ‖t‖² (M − Σ 1/(1 + x_v)), ‖ΣRt‖ ≤ M ‖t‖. Rounding is allowed `SLACK`.

Under the additive objective the linear answer y = (Z w, Sᵀα, 1ᵀα) to x = (s, q, a) is a Hessian's, of one sign in (s,
a) and the other in q, so for any two directions of one operator, and for the sum over sites as for each,

    ⟨x₁, y₂⟩ = ⟨x₂, y₁⟩,  ⟨x, y⟩ = s·y_q + q·y_s + a y_a        q·y_s − s·y_q − a y_a ≥ ‖y‖²/(M B)

with B the plan's `operator_norm_bound`, which bounds κ of every site; the certificate's own exchange is of the positive
σ⁻²SᵀS. Derived in docs/research/mathematics.md.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.question_types import Ask as Kind
from coreg_core.additive.question_types import Operator, split
from coreg_core.numerics.arrays import Arr

SLACK = 1e-6  # of ‖t‖²: far above the rounding of an honest answer, far below a false answer that matters

SOME_SITE = "the sum of the answers {}: some site sends false answers, and a sum does not show which one."

# Of the additive objective: an inner product's rounding at m = 10⁶, of ‖x‖‖y‖; and a solve's, of B‖x‖².
PART_SLACK, PART_ROUNDING = 1e-9, 1e-13


def products(a: Float64[Arr, "m k"], b: Float64[Arr, "m k"]) -> Float64[Arr, " k"]:
    """⟨a_j, b_j⟩ of every column: by BLAS for a single column, whose numbers are contiguous."""
    return np.array([np.dot(a[:, 0], b[:, 0])]) if a.shape[1] == 1 else np.einsum("mk,mk->k", a, b)


def linear_fault(
    targets: Float64[Arr, "m k"],
    answers: Float64[Arr, "m k"],
    most: Float64[Arr, " k"],
    n_sites: int,
) -> str | None:
    """The reason why honest sites cannot give these answers, or this sum, to linear questions; None if they can.

    Parameters
    ----------
    targets
        t, a column each.
    answers
        Rt, or ΣRt.
    most
        x/(1 + x) of each column, or its sum over the sites.
    n_sites
        number of answers in the sum.
    """
    size, along, length = products(targets, targets), products(targets, answers), np.sqrt(products(answers, answers))
    if (along < -SLACK * n_sites * size).any():
        return "points away from the direction that was asked, and a site's response never does"
    if (along > (most + SLACK * n_sites) * size).any():
        return "goes farther along the direction that was asked than the stated bound b_v allows"
    if (length > n_sites * (1.0 + SLACK) * np.sqrt(size)).any():
        return "is longer than the direction that was asked, and a site's response never is"
    return None


# For each kind of question with scalar answers, the scalars that are sums of squares, sizes or counts.
_COUNTS = {Kind.LABELS: (0,), Kind.FORECAST: (2, 3, 4, 5)}
_NEVER_NEGATIVE = {Kind.SPREAD, Kind.SCORE, Kind.SMOOTHED, Kind.GRADIENT, Kind.JOINT, Kind.FORECAST}


def scalar_fault(kind: Kind, scalars: Sequence[float]) -> str | None:
    """The reason why honest sites cannot give these scalars, or their sum, under the additive objective; None if they can."""
    counts = [scalars[j] for j in _COUNTS.get(kind, ()) if j < len(scalars)]
    if any(n < 0.0 or n != np.rint(n) for n in counts):
        return "counts what is no number of labels or sites"
    if kind in _NEVER_NEGATIVE and any(x < 0.0 for x in scalars):
        return "has a size or a sum of squares below zero"
    if kind is Kind.TRACES and scalars and scalars[0] < 0.0:
        return "has a size or a sum of squares below zero"
    return None


def part_fault(
    points: Float64[Arr, "r k"],
    answers: Float64[Arr, "r k"],
    operators: Sequence[Operator],
    gain: float,
    step: float = 0.0,
) -> str | None:
    """The reason why honest sites cannot give these answers, or this sum, to linear questions of the additive objective.

    Parameters
    ----------
    points
        x, a column each.
    answers
        y, or Σy.
    operators
        of each column; columns of one operator are checked against each other.
    gain
        B of a site, M B of a sum of M.
    step
        bound on the fixed-point error of an answer to a point of norm 1, ‖·‖₂.

    Returns
    -------
    str or None
        the violated invariant.
    """
    sizes, length = np.sqrt(products(points, points)), np.sqrt(products(answers, answers))
    if not (length <= (gain * (1.0 + PART_SLACK) + step) * sizes).all():
        return "is longer than the plan's operator_norm_bound lets any be"
    if gain == 0.0:
        return None  # no norm and no answer
    for operator in dict.fromkeys(operators):
        of_one = np.array([other == operator for other in operators]) & (sizes > 0.0)
        if of_one.any():
            unit, answer = points[:, of_one] / sizes[of_one], answers[:, of_one] / sizes[of_one]
            if (wrong := _part_fault(unit, answer, gain, step)) is not None:
                return wrong
    return None


def _part_fault(x: Float64[Arr, "r k"], y: Float64[Arr, "r k"], gain: float, step: float) -> str | None:
    """The check for directions of norm 1 under one operator; every combination of them is one of its directions too."""
    (s, q, a), (y_s, y_q, y_a) = split(x), split(y)
    # The backward error of the site's own solve scales with B, not with its answer.
    slack = PART_SLACK * np.sqrt(products(y, y)) + step + gain * PART_ROUNDING
    crossed, straight, centre = q.T @ y_s, s.T @ y_q, np.outer(a, y_a)
    together = crossed + straight + centre
    if (np.abs(together - together.T) > slack + slack[:, None]).any():
        return "takes two directions for one another differently, and a site's part never does"
    given_off = crossed - straight - centre - (y.T @ y) / gain
    if np.linalg.eigvalsh(0.5 * (given_off + given_off.T))[0] < -len(slack) * slack.max():
        return "takes in what a site's part only ever gives off, at the plan's operator_norm_bound"
    return None


def smoothed_fault(
    points: Float64[Arr, "m k"], answers: Float64[Arr, "l k"], sizes: Float64[Arr, " 2"], step: float = 0.0
) -> str | None:
    """The check of SMOOTHED: (D, e) of ρ_s, with the stated Σσ⁻²‖S‖² and Σσ⁻²‖S‖√n."""
    D, e = answers[:-1], answers[-1]
    size, length = (np.sqrt(products(v, v)) for v in (points, D))
    along = products(points, D)
    moved = step * size
    along += PART_SLACK * size * length + moved * size
    if (length > np.sqrt(sizes[0] * np.maximum(along, 0.0)) + moved).any():
        return "is not one of a smoother of the size that was stated with it"
    if (np.abs(e) > (1.0 + PART_SLACK) * sizes[1] * size + moved).any():
        return "sums to more over the labels than the size that was stated with it allows"
    return None
