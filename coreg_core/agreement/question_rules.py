r"""What a schedule can ask of one site, whoever steps it: a site holds every question to this before it answers.

| schedule | part | target | weight, one for each coupling λ |
|---|---|---|---|
| conjugate gradients | affine | 0 | 2λM |
| conjugate gradients | linear | any: a direction, or z | 2λM |
| consensus | affine | any | 2λM |
| block coordinate descent | affine | any | 2λ(M−1) |

M is how many sites take part: anything from the plan's `min_sites` to all that it lists. A restart from z, after a
change of membership, begins with the same affine question at target 0 and asks for z in a linear one, so labels stay in
respond(0, μ).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float64

from coreg_core.agreement.columns import Column
from coreg_core.agreement.objective import consensus_weight, labels_behind, relative_coupling, sweep_weight
from coreg_core.agreement.views import Part
from coreg_core.numerics.arrays import Arr


def weight_of(name: str, coupling: float, n_views: int) -> float:
    """μ at which the schedule of that name asks a column of coupling λ, where M sites take part."""
    weight = sweep_weight if name == "block-coordinate-descent" else consensus_weight
    return weight(coupling, n_views)


@dataclass(frozen=True)
class RelativeTo:
    """What a site knows of the units of relative couplings: m, and that its own labels are among those of all sites."""

    n_unlabelled: int
    n_own: int


def question_fault(
    name: str,
    coupling: Sequence[float],
    n_views: range,
    part: Part,
    columns: Sequence[Column],
    targets: Float64[Arr, "m k"],
    relative: RelativeTo | None = None,
) -> str | None:
    """Why the schedule of that name asks no such thing, with any of these numbers of sites; None where it does.

    Parameters
    ----------
    name
        of the schedule.
    coupling
        λ, one for each column of the plan.
    n_views
        the numbers of sites that may take part.
    part
        of respond.
    columns
        what is asked, column by column.
    targets
        as many columns.
    relative
        what the site knows of the units of ``coupling``, where they are relative.
    """
    gradients = name == "conjugate-gradients"
    if part == "linear" and not gradients:
        return f"a linear question, where {name} asks affine ones alone."
    if part == "affine" and gradients and targets.any():
        return "an affine question at another target than 0, which conjugate gradients never ask: it would show labels."
    if relative is not None:
        return relative_fault(name, coupling, relative, n_views, columns)
    return weights_fault(name, coupling, n_views, columns)


def weights_fault(name: str, coupling: Sequence[float], n_views: range, columns: Sequence[Column]) -> str | None:
    """Why these columns are not the plan's couplings at the weights that some allowed number of sites gives; or None."""
    if tuple(column.coupling for column in columns) != tuple(coupling):
        told = ", ".join(f"{column.coupling:g}" for column in columns)
        return (
            f"columns of coupling {told or '(none)'}, where the plan has {', '.join(f'{lam:g}' for lam in coupling)}."
        )
    # The coordinator computes them by the same function of the same numbers, so they are equal to the last bit.
    if not any(all(weight_of(name, c.coupling, M) == c.weight for c in columns) for M in n_views):
        told = ", ".join(f"{column.weight:g}" for column in columns)
        return f"weights {told}, which the plan's couplings have with no number of sites from {n_views[0]} to {n_views[-1]}."
    return None


def relative_fault(
    name: str, relative: Sequence[float], known: RelativeTo, n_views: range, columns: Sequence[Column]
) -> str | None:
    """Why these columns are not the plan's relative couplings with any number of labels and sites; or None.

    One Σn_v stands behind all of them, to the last bit, and it counts this site's labels and at least one of every other.
    """
    if len(columns) == len(relative):
        for M in n_views:
            labels = {
                labels_behind(c.coupling, rho, M, known.n_unlabelled)
                for c, rho in zip(columns, relative, strict=True)
                if rho > 0.0
            }
            least = known.n_own + M - 1
            couplings = [relative_coupling(rho, n, M, known.n_unlabelled) for n in labels or {0} for rho in relative]
            if (
                len(labels) <= 1
                and min(labels, default=least) >= least
                and weights_fault(name, couplings, range(M, M + 1), columns) is None
            ):
                return None
    told = ", ".join(f"{column.coupling:g} at weight {column.weight:g}" for column in columns)
    return (
        f"couplings {told or '(none)'}, which are not {', '.join(f'{rho:g}' for rho in relative)} times Σn_v/(2M²m) with any "
        "number of labels that these sites can have."
    )


def max_questions(max_rounds: int) -> int:
    """How many questions of one run a site answers at most, whatever happens to the membership: 2 (max_rounds + 1).

    Undisturbed, a site answers one question a round (a sweep, for block coordinate descent), so max_rounds of them. A
    site that is lost costs those who are left one question more, since the one that was open is asked of the new membership
    again; so does one that is taken back in the middle of a sweep. As many again as there are rounds, and one, is a
    membership that changes in every round.
    """
    return 2 * (max_rounds + 1)
