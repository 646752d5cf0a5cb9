"""Compute 60-digit solutions of the additive objective: tests/core/golden/additive/*.json. Needs mpmath (pip install mpmath).

    python tools/golden_additive.py [NAME ...]

The script follows the objective alone and shares no code with coreg_core. Features and smoothers' features lie on a grid. J's
normal equations are formed and solved in 60 digits, and so are s, q, a, J at the optimum and off it, and the traces of the
evidence. The files have the inputs as floats (which mpmath reads exactly) and the solutions rounded to 17 digits.
"""

import json
import sys
from pathlib import Path

import mpmath as mp
import numpy as np

mp.mp.dps = 60
WHERE = Path(__file__).parents[1] / "tests" / "core" / "golden" / "additive"

# name: (seed, labels a site, shared instances, features, smoother features, noise, prior, c)
CASES = {
    "three-sites": (1, [5, 4, 6], 8, [2, 3, 2], [2, 2, 3], [0.1, 0.3, 0.05], [1.0, 0.5, 2.0], 1.0),
    "no-labels": (2, [6, 0], 7, [2, 2], [2, 2], [0.2, 1.0], [0.8, 1.0], 1.0),
    "one-site": (3, [7], 5, [3], [2], [0.01], [1.5], 10.0),
    "nothing-shared": (4, [4, 3], 0, [2, 2], [1, 1], [0.5, 0.1], [1.0, 1.0], 1.0),
    "little-noise": (5, [6, 6, 5], 10, [4, 4, 4], [3, 3, 3], [1e-4, 1e-3, 1e-4], [10.0, 1.0, 3.0], 1.0),
}


def rounded(value):
    if isinstance(value, (list, tuple)):
        return [rounded(v) for v in value]
    if isinstance(value, mp.matrix):
        return [float(v) for v in value]
    return float(value)


def centred(rng, n, m, d):
    """Features on a grid of 2⁻¹⁰, so that Zᵀ1 = 0 holds exactly in floats and in decimals."""
    Z = np.round(rng.normal(size=(m, d)) * 2**10) / 2**10
    if m:
        Z[-1] = -Z[:-1].sum(axis=0)
    return np.round(rng.normal(size=(n, d)) * 2**10) / 2**10, Z


def matrix(array):
    array = np.asarray(array, dtype=float)
    out = mp.zeros(*array.shape)
    for i in range(array.shape[0]):
        for j in range(array.shape[1]):
            out[i, j] = mp.mpf(float(array[i, j]))
    return out


def product(A, B):
    """A B, also where a dimension is 0."""
    return A * B if A.rows and A.cols and B.cols else mp.zeros(A.rows, B.cols)


def make(name):
    seed, n, m, d, other, noise, prior, c = CASES[name]
    rng = np.random.default_rng(seed)
    sites, exact = [], []
    for v in range(len(n)):
        Phi, Z = centred(rng, n[v], m, d[v])
        reading_X, reading_Z = centred(rng, n[v], m, other[v])
        eta = 0.5
        y = np.round(rng.normal(size=n[v]) * 2**10) / 2**10
        sites.append({
            "y": y.tolist(), "labelled": Phi.tolist(), "shared": Z.reshape(m, d[v]).tolist(), "eta": eta,
            "reading_labelled": reading_X.tolist(), "reading_shared": reading_Z.tolist(),
            "noise": noise[v], "prior": prior[v],
        })  # fmt: skip
        R, RX = matrix(reading_Z.reshape(m, other[v])), matrix(reading_X.reshape(n[v], other[v]))
        gram = product(R.T, R) + mp.mpf(eta) * mp.eye(other[v])
        S = product(RX, product(gram**-1, R.T))
        exact.append(
            (matrix(y[:, None].reshape(n[v], 1)), matrix(Phi.reshape(n[v], d[v])), matrix(Z.reshape(m, d[v])), S)
        )
    ends = np.cumsum([0, *d]).tolist()
    D = ends[-1]
    # Every labelled row as a row over (w_1, …, w_M, a): the normal equations of J, which is accurate enough with 60 digits.
    H, right = mp.zeros(D + 1, D + 1), mp.zeros(D + 1, 1)
    rows = []
    for v, (y, Phi, _, S) in enumerate(exact):
        across = [Phi if u == v else product(S, Zu) for u, (_, _, Zu, _) in enumerate(exact)]
        for i in range(n[v]):
            row = mp.zeros(1, D + 1)
            for u, block in enumerate(across):
                for j in range(d[u]):
                    row[0, ends[u] + j] = block[i, j]
            row[0, D] = mp.mpf(1)
            rows.append((v, row, y[i]))
            H += row.T * row / mp.mpf(noise[v])
            right += row.T * y[i] / mp.mpf(noise[v])
    for u in range(len(n)):
        for j in range(ends[u], ends[u + 1]):
            H[j, j] += 1 / mp.mpf(prior[u])
    H[D, D] += 1 / mp.mpf(c)
    solution = mp.lu_solve(H, right)

    def J(theta):
        total = theta[D] ** 2 / mp.mpf(c)
        for v, row, target in rows:
            total += (target - (row * theta)[0]) ** 2 / mp.mpf(noise[v])
        for u in range(len(n)):
            total += sum(theta[j] ** 2 for j in range(ends[u], ends[u + 1])) / mp.mpf(prior[u])
        return total

    w = [mp.matrix([solution[j] for j in range(ends[u], ends[u + 1])]) for u in range(len(n))]
    s, q = mp.zeros(m, 1), mp.zeros(m, 1)
    for v, (_, _, Z, S) in enumerate(exact):
        s += product(Z, w[v])
        alpha = (
            mp.matrix([(t - (row * solution)[0]) / mp.mpf(noise[v]) for u, row, t in rows if u == v])
            if n[v]
            else mp.zeros(0, 1)
        )
        q += product(S.T, alpha)
    # Traces: γ_u = d_u − tr (H⁻¹)_uu / τ_u², κ_v = n_v − Σ_rows row H⁻¹ rowᵀ / σ_v².
    inverse = H**-1
    gamma = [d[u] - sum(inverse[j, j] for j in range(ends[u], ends[u + 1])) / mp.mpf(prior[u]) for u in range(len(n))]
    kappa = [
        n[v] - sum((row * inverse * row.T)[0] for u, row, _ in rows if u == v) / mp.mpf(noise[v]) for v in range(len(n))
    ]
    # A point off the optimum, w(x) = w* + 1/8 and a + 1/8, and its distance.
    moved = solution + mp.matrix([mp.mpf(1) / 8] * (D + 1))
    return {
        "sites": sites, "c": c, "w": [rounded(x) for x in w], "intercept": rounded(solution[D]), "s": rounded(s), "q": rounded(q),
        "objective": rounded(J(solution)), "objective_off": rounded(J(moved)), "gamma": rounded(gamma), "kappa": rounded(kappa),
    }  # fmt: skip


if __name__ == "__main__":
    WHERE.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or CASES:
        (WHERE / f"{name}.json").write_text(json.dumps(make(name), indent=1) + "\n")
        print(name)
