"""Rounds of conjugate gradients against serial steps of the paper's Algorithm 1; its sweeps against
the paper's bound.

    python benchmarks/rounds.py [--json] [--keep]

First: both solvers through the real machines in one process, to the same tolerance. A wide-area
network's latency multiplies the steps in series.

Second: section 4.3 of Brefeld et al. (2006). "Similar to steepest descent", a sweep divides the
error Q − Q* by a Δ that depends on the extreme eigenvalues of the Hessian. So log_Δ(1/ε) sweeps
bring it from at most Mn (labels in [−1, 1]) to Mnε. Steepest descent has Δ = ((κ + 1)/(κ − 1))²
with the condition number κ. κ depends on the coordinates, Algorithm 1 does not: the bounds use the
paper's coefficients c, orthonormal coordinates, and coordinates with G_v = I. The exact Δ comes
from the spectral radius of the algorithm's own iteration matrix. ε = 10⁻⁶, semi-parametric, the
paper's rules. --keep writes benchmarks/results/rounds.json.
"""

from itertools import pairwise

import numpy as np
from harness import arguments, keep, show
from scipy.linalg import eigh, eigvals, eigvalsh, solve_triangular

from benchmarks.stacked_system import textbook_view
from coreg_core.kernels import Gaussian
from coreg_core.objectives.agreement import Agreement
from coreg_core.selection import paper_bandwidth, paper_ridge
from coreg_core.terms import Iteration
from coreg_sim.problems import generated
from coreg_sim.simulate import plan_for, simulate

CASES = ((4, 0.1), (16, 0.1), (16, 1.0))
LABELLED = 50
EPSILON = 1e-6
SPAN = 1e-10


def through_the_machines(problem, coupling):
    row = {}
    for solver in ("conjugate-gradients", "block-coordinate-descent"):
        iteration = Iteration(solver, prediction_tolerance=1e-3, max_rounds=10_000)
        run = simulate(problem, plan_for(problem, Agreement(coupling=(coupling,)), iteration))
        row[solver] = {
            "stop": run.outcome.name,
            "rounds": run.rounds,
            "in_series": len(run.taken),
        }
    cg = row["conjugate-gradients"]
    bcd = row["block-coordinate-descent"]
    return row | {"ratio": bcd["in_series"] / cg["in_series"]}


def system(problem, coupling):
    """Half the Hessian in orthonormal coordinates, the right side, each site's slice, and the map
    from the paper's c.
    """
    parts = []
    M = len(problem.sites)
    for data in problem.sites.values():
        kernel = Gaussian(paper_bandwidth(data.X))
        ridge = paper_ridge(data.X)
        view = textbook_view(
            kernel, data.X, data.y / np.abs(data.y).max(), data.Z, ridge, exact=False
        )
        s, V = eigh(view.K)
        kept = s > SPAN * s[-1]
        scale = V[:, kept] / np.sqrt(s[kept])
        parts.append((view.L @ scale, view.U @ scale, view.y, ridge, np.sqrt(s[kept])))
    ends = np.cumsum([0] + [len(part[-1]) for part in parts])
    slices = [slice(a, b) for a, b in pairwise(ends)]
    N = np.zeros((ends[-1], ends[-1]))
    for a, (X, U, _, ridge, _) in zip(slices, parts, strict=True):
        for b, (_, other, _, _, _) in zip(slices, parts, strict=True):
            N[a, b] = -2.0 * coupling * U.T @ other
        N[a, a] = X.T @ X + ridge * np.eye(X.shape[1]) + 2.0 * coupling * (M - 1) * U.T @ U
    right = np.concatenate([X.T @ y for X, _, y, _, _ in parts])
    return N, right, slices, np.concatenate([part[-1] for part in parts])


def condition(N):
    s = eigvalsh(N)
    return float(s[-1] / max(s[0], np.finfo(float).eps * s[-1]))


def sweeps_of(kappa):
    return float(np.log(1.0 / EPSILON) / (2.0 * np.log((kappa + 1.0) / (kappa - 1.0))))


def rate(problem, coupling):
    """The bounds on the number of sweeps, and the number itself."""
    N, right, slices, roots = system(problem, coupling)
    # K = V s Vᵀ and c = V s^(−1/2) w; the rotations V change no eigenvalue.
    of_paper = roots[:, None] * N * roots
    normal = N.copy()
    lower = np.zeros_like(N)
    for i, a in enumerate(slices):
        factor = np.linalg.cholesky(N[a, a])
        normal[a] = solve_triangular(factor, normal[a], lower=True)
        normal[:, a] = solve_triangular(factor, normal[:, a].T, lower=True).T
        for b in slices[: i + 1]:
            lower[a, b] = N[a, b]
    radius = float(np.abs(eigvals(np.eye(len(N)) - np.linalg.solve(lower, N))).max())
    best = np.linalg.solve(N, right)
    w = np.zeros(len(N))
    count = 0
    limit = len(slices) * LABELLED * EPSILON
    while (w - best) @ N @ (w - best) > limit:
        for a in slices:
            w[a] += np.linalg.solve(N[a, a], right[a] - N[a] @ w)
        count += 1
    kappas = {
        "paper": condition(of_paper),
        "orthonormal": condition(N),
        "normal": condition(normal),
    }
    bounds = {name: sweeps_of(kappa) for name, kappa in kappas.items()}
    return {
        "kappa": kappas,
        "bound": bounds,
        "exact": float(np.log(1.0 / EPSILON) / -2.0 / np.log(radius)),
        "sweeps": count,
    }


def main() -> None:
    options = arguments(__doc__, json=False, keep=False)
    rows = []
    kept = []
    for M, coupling in CASES:
        problem = generated(M, LABELLED, 500, 5, seed=0)
        bounds = {"sites": M, "coupling": coupling, **rate(problem, coupling)}
        row = bounds | through_the_machines(problem, coupling)
        rows.append(row)
        kept.append(bounds)
        if not options.json:
            cg = row["conjugate-gradients"]
            bcd = row["block-coordinate-descent"]
            bound = row["bound"]
            print(
                f"M = {M:>2}, coupling {coupling:g}: conjugate gradients {cg['in_series']} rounds"
                f" ({cg['stop'].lower()}), Algorithm 1 {bcd['in_series']} steps in series"
                f" ({bcd['stop'].lower()}), ratio {row['ratio']:.0f}\n  sweeps to ε = 1e-6: bound"
                f" {bound['paper']:.1e} in c, {bound['orthonormal']:.0f} in orthonormal"
                f" coordinates, {bound['normal']:.0f} at G = I, {row['exact']:.0f} by the exact"
                f" factor, measured {row['sweeps']}",
                flush=True,
            )
    if options.json:
        show(rows)
    if options.keep:
        keep("benchmarks/results/rounds.json", rows=kept)


if __name__ == "__main__":
    main()
