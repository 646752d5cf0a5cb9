r"""The agreement's couplings at one site: its own point of a path by closed-form leave-one-out, and λ in units of the plan.

    f = argmin ‖y − f(X)‖² + ν‖f‖² + μ‖f(Z) − t‖²,   t the mean of the *others'* predictions, μ = 2λ(M − 1)
    given t:  C = ν Φ_X (νI + μ Φ_ZᵀΦ_Z)⁻¹ Φ_Xᵀ,  g = μ Φ_X (νI + μ Φ_ZᵀΦ_Z)⁻¹ Φ_Zᵀ t
    e = D⁻¹ (C + νI)⁻¹ (y − g),   D = diag (C + νI)⁻¹

e_i is what the fit without row i is off by at row i, the others' predictions held. λ = 0 is always in the path, and is the site
alone. The others heard of y_i through their own agreeing, which t keeps: so the choice leans to larger λ than folds of the whole
federation would, and what is *reported* of the chosen point is nested: folds, each with a choice of its own. Against the mean
of *all* predictions (which holds the site's own) the lean would be as large as the site's share in it. Source: Brefeld et al.
(2006), Algorithm 1, for the primitive; Rasmussen and Williams (2006), 5.4.2, for the formula. Knows one site's arrays.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from scipy.linalg import cho_factor, cho_solve

from coreg_core.arrays import Arr
from coreg_core.errors import UsageError
from coreg_core.objective import relative_coupling


def relative_unit(labelled: Sequence[int], n_unlabelled: int) -> float:
    """Σn_v/(2M²m): the λ at which the M·m pulls to the consensus weigh as much as all labels, Σ_v 2Mλ·m = Σn_v.

    Parameters
    ----------
    labelled
        n_v, one a site.
    n_unlabelled
        m.

    Raises
    ------
    UsageError
        no site, or no shared instance: nothing to agree on.
    """
    M = len(labelled)
    if M == 0 or n_unlabelled < 1:
        raise UsageError(
            f"{M} sites and {n_unlabelled} shared instances: a relative coupling needs at least one of each."
        )
    return relative_coupling(1.0, int(sum(labelled)), M, n_unlabelled)


def absolute_couplings(relative: Sequence[float], labelled: Sequence[int], n_unlabelled: int) -> tuple[float, ...]:
    """λ of relative couplings, each times `relative_unit`; one number means the same for 3 sites and 100, 250 rows and 10⁶."""
    unit = relative_unit(labelled, n_unlabelled)
    return tuple(unit * each for each in relative)


def others_mean(consensus: Float64[Arr, "m k"], own: Float64[Arr, "m k"], n_sites: int) -> Float64[Arr, "m k"]:
    """(M z − ŷ_v)/(M − 1): what the others say on average, from the mean of all and one's own; 0 for a site without others."""
    if n_sites < 2:
        return np.zeros_like(consensus)
    others: Arr = (n_sites * consensus - own) / (n_sites - 1)
    return others


def others_weights(couplings: Sequence[float], n_sites: int) -> Float64[Arr, " k"]:
    """μ = 2λ(M − 1), the weight of a target that is the others' mean."""
    return 2.0 * np.asarray(couplings, dtype=np.float64) * (n_sites - 1)


def respond_leave_one_out(
    labelled: Float64[Arr, "n r"],
    shared: Float64[Arr, "m r"],
    y: Float64[Arr, " n"],
    ridge: float,
    targets: Float64[Arr, "m k"],
    weights: Float64[Arr, " k"],
) -> Float64[Arr, "k n"]:
    """e (k, n): leave-one-out residuals of respond(t, μ) at the labelled rows, one row of the result a column.

    Parameters
    ----------
    labelled
        Φ_X, features with ‖f‖ = ‖w‖; centre labels and features for a free intercept before.
    shared
        Φ_Z.
    y
        labels.
    ridge
        ν.
    targets
        t, a column each: the others' mean (`others_mean`).
    weights
        μ, one a column (`others_weights`); 0: alone.
    """
    values, V = np.linalg.eigh(shared.T @ shared)
    values = np.maximum(values, 0.0)
    rows, pulled = labelled @ V, V.T @ (shared.T @ targets)
    n = len(y)
    errors = np.empty((len(weights), n))
    for j, mu in enumerate(weights):
        shrunk = rows / (ridge + mu * values)
        factor = cho_factor(ridge * (shrunk @ rows.T) + ridge * np.eye(n), lower=True, check_finite=False)
        precision = cho_solve(factor, np.eye(n), check_finite=False)  # its diagonal is what is asked for
        errors[j] = precision @ (y - mu * (shrunk @ pulled[:, j])) / np.diag(precision)
    return errors


def choose_coupling(couplings: Sequence[float], errors: Float64[Arr, "k n"]) -> int:
    """Which point of the path a site takes: least mean squared leave-one-out error; the smallest λ where they tie.

    Raises
    ------
    UsageError
        λ = 0 is not in the path: "stay alone" has to be an answer.
    """
    if 0.0 not in [float(each) for each in couplings]:
        raise UsageError(f"couplings={tuple(couplings)}: 0 has to be among them, so that staying alone is an answer.")
    order = np.argsort(np.asarray(couplings), kind="stable")
    return int(order[int(np.argmin(np.mean(errors[order] ** 2, axis=1)))])
