r"""The optimum of coRLSR in ball arithmetic (python-flint): the reference of `certify.py`.

    k_v(a, b) = k(a, b)                                   exact form
    k_v(a, b) = k(a, U) K_UU⁺ k(U, b), U the rows of X_v  semi-parametric form

and in both, with mean m₀ and covariance Σ of the posterior on Z: z* = [Σ_v N_v]⁻¹ Σ_v N_v m₀_v, N_v = (I + (μ/ν_v)Σ_v)⁻¹
(docs/research/mathematics.md). Every float is an exact number, every operation is enclosed, and the precision is
doubled until the result's radius is below 1e-25 of its size. The script shares no code with coreg_core. The pseudo-inverse is a
pivoted LDLᵀ. Its pivots are either proved positive, or enclose 0 at a width below the resolution of float64 data.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx

from coreg_core.kernels.functions import Gaussian, Kernel, Laplacian, Linear, Polynomial


@dataclass(frozen=True)
class Case:
    """One view: its kernel, its rows, ν. All arrays float64, taken exactly."""

    kernel: Kernel
    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    ridge: float


@dataclass
class Optimum:
    """The optimum: ŷ* (M lists of balls), Q*, and the inputs of `value`."""

    predictions: list[arb_mat]
    objective: arb
    blocks: list[tuple[arb_mat, arb_mat, arb_mat]]  # K_XX, K_XZ, K_ZZ of the full kernel

    def errors(self, found: np.ndarray) -> list[float]:
        """‖ŷ_v − ŷ_v*‖₂ for every view."""
        out = []
        for row, best in zip(found, self.predictions, strict=True):
            total = arb(0)
            for j, value in enumerate(row.tolist()):
                off = arb(value) - best[j, 0]
                total += off * off
            out.append(float(total.abs_upper()) ** 0.5)
        return out

    def sizes(self) -> list[float]:
        """‖ŷ_v*‖₂ for every view."""
        return [
            float(sum((p[j, 0] * p[j, 0] for j in range(p.nrows())), arb(0)).abs_upper()) ** 0.5
            for p in self.predictions
        ]


def _dot(a: list[arb], b: list[arb]) -> arb:
    return arb(0) if not a else sum((x * y for x, y in zip(a, b, strict=True)), arb(0))


def kernel_matrix(kernel: Kernel, A: np.ndarray, B: np.ndarray) -> arb_mat:
    """k(A, B), enclosed."""
    rows = [[arb(x) for x in a] for a in A.tolist()]
    cols = rows if A is B else [[arb(x) for x in b] for b in B.tolist()]
    out: list[list[Any]] = [[None] * len(cols) for _ in rows]
    for i, a in enumerate(rows):
        for j, b in enumerate(cols):
            if A is B and j < i:
                out[i][j] = out[j][i]
                continue
            match kernel:
                case Gaussian(bandwidth):
                    out[i][j] = (-sum(((x - y) * (x - y) for x, y in zip(a, b, strict=True)), arb(0)) / bandwidth).exp()
                case Laplacian(bandwidth):
                    out[i][j] = (-sum((abs(x - y) for x, y in zip(a, b, strict=True)), arb(0)) / bandwidth).exp()
                case Polynomial(degree, offset, bandwidth):
                    out[i][j] = (_dot(a, b) / bandwidth + offset) ** degree
                case Linear():
                    out[i][j] = _dot(a, b)
                case _:
                    raise NotImplementedError(kernel)
    return arb_mat(len(rows), len(cols), [e for row in out for e in row])


def span_kernel(K_XX: arb_mat, K_XZ: arb_mat, bits: int) -> arb_mat:
    """k(Z, U) K_UU⁺ k(U, Z) by a pivoted LDLᵀ of K_XX that drops pivots enclosing 0.

    Raises:
        ArithmeticError: a pivot is neither positive nor negligible at this precision.
    """
    n, m = K_XX.nrows(), K_XZ.ncols()
    A = [[K_XX[i, j] for j in range(n)] for i in range(n)]
    H = [[K_XZ[i, j] for j in range(m)] for i in range(n)]
    largest = max(float(A[i][i].mid()) for i in range(n))
    left, rows = list(range(n)), []
    nought = arb(largest if largest > 0 else 1.0) * arb(2) ** (-bits // 2)
    while left:
        p = max(left, key=lambda i: A[i][i].mid())
        pivot = A[p][p]
        if not pivot > nought:
            if pivot < 2 * nought:
                break
            raise ArithmeticError("a pivot is neither positive nor nought")
        left.remove(p)
        for i in left:
            factor = A[i][p] / pivot
            for j in left:
                if j <= i:
                    A[i][j] = A[j][i] = A[i][j] - factor * A[p][j]
            H[i] = [h - factor * g for h, g in zip(H[i], H[p], strict=True)]
        root = pivot.sqrt()
        rows.append([g / root for g in H[p]])
    if not rows or not m:
        return arb_mat(m, m, [0] * (m * m))
    Phi = arb_mat(len(rows), m, [e for row in rows for e in row])
    return Phi.transpose() * Phi


def _identity(m: int) -> arb_mat:
    return arb_mat(m, m, [1 if i == j else 0 for i in range(m) for j in range(m)])


def optimum(cases: list[Case], coupling: float, form: str, bits: int = 320) -> Optimum:
    """ŷ* and Q*, at the precision that encloses them to 1e-25."""
    while True:
        try:
            found = _optimum(cases, coupling, form, bits)
            if _tight(found):
                return found
        except (ArithmeticError, ZeroDivisionError):
            pass
        bits *= 2
        if bits > 20_000:
            raise ArithmeticError("no enclosure at 20 000 bits")


def _tight(found: Optimum) -> bool:
    values = [p[j, 0] for p in found.predictions for j in range(p.nrows())] + [found.objective]
    return all(bool(v.is_finite()) and float(v.rad()) <= 1e-25 * (1e-250 + abs(float(v.mid()))) + 1e-60 for v in values)


def _optimum(cases: list[Case], coupling: float, form: str, bits: int) -> Optimum:
    ctx.prec = bits
    M, m = len(cases), len(cases[0].Z)
    mu = 2 * arb(coupling) * M if M > 1 else arb(0)
    posts, blocks = [], []
    for c in cases:
        n = len(c.X)
        K_XX, K_XZ = kernel_matrix(c.kernel, c.X, c.X), kernel_matrix(c.kernel, c.X, c.Z)
        K_ZZ = kernel_matrix(c.kernel, c.Z, c.Z)
        blocks.append((K_XX, K_XZ, K_ZZ))
        K_V = K_ZZ if form == "exact" else span_kernel(K_XX, K_XZ, bits)
        noisy = K_XX + arb_mat(n, n, [c.ridge if i == j else 0 for i in range(n) for j in range(n)])
        y = arb_mat(n, 1, [arb(v) for v in c.y.tolist()])
        c0 = noisy.solve(y)
        if m == 0:
            posts.append((noisy, K_XZ, y, arb_mat(0, 1), None, c))
            continue
        solved = noisy.solve(K_XZ)
        S = K_V - K_XZ.transpose() * solved
        B = _identity(m) + S * (mu / arb(c.ridge))
        m0 = K_XZ.transpose() * c0
        posts.append((noisy, K_XZ, y, m0, B, c))
    z = arb_mat(m, 1)
    if m:
        total, right = arb_mat(m, m), arb_mat(m, 1)
        inverses = []
        for _, _, _, m0, B, _ in posts:
            N = B.solve(_identity(m))
            inverses.append(N)
            total, right = total + N, right + N * m0
        z = total.solve(right)
    predictions, Q = [], arb(0)
    for v, (noisy, K_XZ, y, m0, _, c) in enumerate(posts):
        if m:
            x = inverses[v] * (z - m0)
            predictions.append(z - x)
            c_Z = x * (mu / arb(c.ridge))
            c_X = noisy.solve(y - K_XZ * c_Z)
        else:
            predictions.append(arb_mat(0, 1))
            c_X = noisy.solve(y)
        # Q* = Σ yᵀ(y − f(X)) at the optimum of a quadratic, and y − f(X) = ν c_X.
        Q += arb(c.ridge) * (y.transpose() * c_X)[0, 0]
    return Optimum(predictions, Q, blocks)
