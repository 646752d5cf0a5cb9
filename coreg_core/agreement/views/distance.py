r"""The distance of two functions of one view, in the norm in which Q is a square.

    ‖f − g‖² = ‖(f − g)(X)‖² + ν‖f − g‖² + μ‖(f − g)(Z)‖²

Q(f) − Q* is at most this, summed over the views, for g at the optimum and μ = 2λM.
"""

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.views.view import UNIT, KernelExpansion
from coreg_core.kernels.precise import expand_precisely, precise_kernel
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.double_double import DD_EPS, matmul, two_sum


def values_precisely(f: KernelExpansion, rows: Float64[Arr, "m d"]) -> Float64[Arr, " m"]:
    """f(rows), in double-double and rounded once."""
    low = np.zeros_like(f.coef) if f.coef_low is None else f.coef_low
    return expand_precisely(f.kernel, rows, f.points, (f.coef[:, None], low[:, None]))[:, 0]


def local_objective(f: KernelExpansion, X: Float64[Arr, "n d"], y: Float64[Arr, " n"], ridge: float) -> float:
    """‖y − f(X)‖² + ν‖f‖², for coefficients that cancel: f and its norm are expanded in double-double."""
    low = np.zeros_like(f.coef) if f.coef_low is None else f.coef_low
    coef = f.coef[:, None], low[:, None]
    residual = y - values_precisely(f, X)
    values = matmul(precise_kernel(f.kernel, f.points, f.points), coef)
    norm = matmul((coef[0].T, coef[1].T), values)[0][0, 0]
    return float(residual @ residual + ridge * max(0.0, norm))


def energy_distance(
    f: KernelExpansion,
    g: KernelExpansion,
    X: Float64[Arr, "n d"],
    Z: Float64[Arr, "m d"],
    ridge: float,
    weight: float,
) -> float:
    """‖f − g‖, rounded up; the difference of the coefficients is expanded in double-double, where it may cancel."""
    points, where = np.unique(np.concatenate([f.points, g.points]), axis=0, return_inverse=True)
    high, low = np.zeros(len(points)), np.zeros(len(points))
    where = where.reshape(-1)
    for expansion, sign, index in ((f, 1.0, where[: len(f.points)]), (g, -1.0, where[len(f.points) :])):
        for part in (expansion.coef, expansion.coef_low):
            if part is None:
                continue
            # Rows of an expansion can repeat, so the sums are taken one after another.
            for i, c in zip(index.tolist(), (sign * part).tolist(), strict=True):
                total, rest = two_sum(high[i : i + 1], np.array([c]))
                high[i], low[i] = total[0], low[i] + rest[0]
    coef = high[:, None], low[:, None]
    kernel, size = f.kernel, np.abs(high)
    reach = float(size @ np.sqrt(kernel.diagonal(points)))  # |δ(x)| is known to DD_EPS of this, times √k(x, x)

    def squared(rows: Arr) -> float:
        if not len(rows):
            return 0.0
        values = expand_precisely(kernel, rows, points, coef)[:, 0]
        rounding = len(points) * DD_EPS * reach * float(np.sqrt(kernel.diagonal(rows).sum()))
        return (float(np.linalg.norm(values)) + rounding) ** 2

    at_points = expand_precisely(kernel, points, points, coef)[:, 0]
    norm = max(0.0, float(high @ at_points)) + len(points) * (
        2 * UNIT * float(size @ np.abs(at_points)) + DD_EPS * reach**2
    )
    return float(np.sqrt(squared(X) + ridge * norm + weight * squared(Z)))
