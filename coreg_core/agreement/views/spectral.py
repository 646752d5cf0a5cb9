r"""A finite span (semi-parametric, landmarks, linear) in spectral form: one factorisation answers every target and
weight.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float64, Int64
from scipy.linalg import eigh, qr, solve_triangular
from scipy.linalg.blas import dtrsm

from coreg_core.agreement.views.view import (
    LEAST_BOUND,
    ROUND_UP,
    SPREAD,
    UNIT,
    BoundRule,
    KernelExpansion,
    Part,
    Solution,
)
from coreg_core.errors import SingularSystem
from coreg_core.kernels.bases import Basis
from coreg_core.numerics.arrays import Arr, Ints, block_rows
from coreg_core.numerics.double_double import DD_EPS, matmul

_TALL = 1024  # rows of a block at which BLAS is fastest
# Multiply-adds up to which P is factored by QR (50 ms); beyond, PᵀP: its rounding grows with μb and not √(μb), and is stated.
_BY_QR = 100_000_000
# Rows times basis points up to which features are computed in integers (0.06 s).
_BY_INTEGERS = 4_000
# … and in double-double (0.3 s), where float64's would be off by more than this.
_BY_PAIRS = 500_000
_GOOD_ENOUGH = 2e-14


class SpectralView:
    r"""A finite span in the spectral form of docs/research/mathematics.md: every (t, μ) costs two passes over C, O(m r).

    $[\Phi_X; \sqrt\nu I] = Q R$, $P = \Phi_Z R^{-1} = U \mathrm{diag}(s) V^\top$, $C = P V$,
    $\beta = V^\top Q_X^\top y$;
    $a(t, \mu) = (\beta + \mu C^\top t) / (1 + \mu s^2)$, $\mathrm{respond}(t, \mu) = C\,a(t, \mu)$.

    Memory: one (m, r) array, column-major, and blocks. Set-up: O(n r² + m r² + m p r).

    Raises
    ------
    SingularSystem
        rounding outweighs the ridge, so no answer would have a bound.
    """

    def __init__(
        self,
        basis: Basis,
        X: Float64[Arr, "n d"],
        y: Float64[Arr, " n"],
        Z: Float64[Arr, "m d"],
        ridge: float,
        *,
        exact_span: bool = False,
    ):
        self._basis, self._y, self._ridge = basis, y, ridge
        self.exact_span = exact_span  # the same optimum as over X ∪ Z: the closed form mixes it with exact views
        diagonal_Z = basis.kernel.diagonal(Z) if len(Z) else np.zeros(0)
        self._diagonal_bound = float(diagonal_Z.max(initial=0.0))
        r, root = basis.rank, float(np.sqrt(ridge))
        features = self._features_of(len(X) + len(Z))
        most = block_rows(len(basis.points))  # kernel values, features and their product are there at once
        Phi_X, tail_X = np.empty((len(X), r)), np.empty(len(X))
        upper: Arr = np.eye(r, r + 1) * root
        for start in range(0, len(X), max(most, 8 * r)):
            rows = slice(start, start + max(most, 8 * r))
            Phi_X[rows], tail_X[rows] = features(X[rows])
            # QR, not a Cholesky factor of ΦᵀΦ + νI: squaring would lose the ridge beside large features. The last column is
            # Q_Xᵀy, so that Q is not needed, and memory beside Φ_X is that of a block.
            below = np.column_stack([Phi_X[rows], y[rows]])
            [upper] = qr(np.concatenate([upper[:r], below]), overwrite_a=True, mode="r", check_finite=False)
        R, on_labels = upper[:r, :r], upper[:r, r]
        # Held as its transpose, so that P and then C are column-major: a round's two products read one column after another.
        T = np.empty((r, len(Z)))
        PtP = np.zeros((r, r))
        R = np.asfortranarray(R)
        by_qr = len(Z) * r * r <= _BY_QR
        tail = 0.0
        step = max(min(most, _TALL), most // 8)
        for start in range(0, len(Z), step):
            rows = slice(start, start + step)
            block, left = features(Z[rows])
            if not block.flags.c_contiguous or np.may_share_memory(block, Z):
                block = np.array(block, order="C")
            # P R = Φ_Z, in place: the transpose of a block is column-major, as BLAS has it.
            dtrsm(1.0, R, block.T, trans_a=1, overwrite_b=1)
            T[:, rows] = block.T
            tail += float(left.sum())
            if not by_qr:
                PtP += block.T @ block
        s, V = np.zeros(r), np.eye(r)
        if by_qr:
            # C = U diag(s) and not P V: columns of small s then are small themselves, and CᵀC is diag(s²) to the last digit of
            # each pair. Through P V they carry the rounding of the largest, which can affect the labels' part of a fully.
            if len(Z):
                outer, triangle = qr(T.T, overwrite_a=True, mode="economic", check_finite=False)  # in T's own memory
                U, found, Vt = np.linalg.svd(triangle)
                s[: len(found)], V = found, np.ascontiguousarray(Vt.T)
                for start in range(0, len(Z), step):
                    rows = slice(start, start + step)
                    T[: len(found), rows] = (outer[rows] @ (U[:, : len(found)] * found)).T
                T[len(found) :] = 0.0
            self._s2 = s * s
        else:
            s2, V = eigh(PtP, driver="evd", check_finite=False)
            self._s2 = np.maximum(s2, 0.0)
            for start in range(0, len(Z), step):
                rows = slice(start, start + step)
                T[:, rows] = V.T @ T[:, rows]
        largest_P = float(np.sqrt(self._s2.sum()))  # Frobenius
        self._C = T.T
        self._features_X = Phi_X
        self._R, self._V = R, V
        self._R_inverse_V = solve_triangular(R, V, check_finite=False)
        self._beta = V.T @ on_labels
        self._by_qr = by_qr
        self._trace_X, self._trace_Z = float(basis.kernel.diagonal(X).sum()), float(diagonal_Z.sum())
        self._tail_X, self._tail_Z = float(np.sqrt(tail_X.sum())), float(np.sqrt(tail))
        self._measure(R, largest_P)

    def _features_of(self, rows: int) -> Callable[[Arr], tuple[Arr, Arr]]:
        """φ and the tail of rows, in the most precise arithmetic that is affordable for so many rows; sets its rounding."""
        basis = self._basis
        entries = rows * len(basis.points)
        if basis.factor is not None and entries <= _BY_INTEGERS:
            self._rounding, self._defect = 2.0**-52, 0.0
            return basis.factor.features
        precisely = bool(
            basis.transform_low is not None
            and entries <= _BY_PAIRS
            and basis.feature_rounding() + basis.orthonormality() > _GOOD_ENOUGH
        )
        self._rounding = basis.feature_rounding(precisely=precisely)
        self._defect = basis.orthonormality(precisely=precisely)
        return lambda A: (basis.features(A, precisely=precisely), basis.tail(A))

    def _measure(self, R: Arr, size_P: float) -> None:
        """‖δΦ_X‖ and ‖δΦ_Z‖, the parts of `response_error`."""
        r, m = self._basis.rank, len(self._C)
        size_R = float(np.linalg.norm(R))
        linear = SPREAD * float(np.sqrt(r)) * UNIT
        self._off_X = self._rounding * float(np.sqrt(self._trace_X)) + linear * size_R
        # P (R + δR) = Φ_Z, row by row: δΦ_Z = P δR.
        self._off_Z = self._rounding * float(np.sqrt(self._trace_Z)) + linear * size_P * size_R
        # Independent errors of m rows move r coordinates by what m rows see through r dimensions: √r for √m, with a margin.
        self._seen = min(1.0, 8.0 * float(np.sqrt(r / m))) if m else 0.0
        if not np.isfinite(self._off_X + self._off_Z) or self._off_X > 0.25 * np.sqrt(self._ridge):
            raise SingularSystem(
                f"the labelled rows' features, of size {size_R:.1e}, leave no digit of ridge={self._ridge:g}: "
                "raise the ridge, or rescale the features."
            )

    @property
    def basis(self) -> Basis:
        """φ, the span that the function is of. For optimality.py."""
        return self._basis

    @property
    def ridge(self) -> float:
        """ν."""
        return self._ridge

    @property
    def n_unlabelled(self) -> int:
        """m."""
        return len(self._C)

    @property
    def rank(self) -> int:
        """r."""
        return self._basis.rank

    @property
    def n_basis(self) -> int:
        """The dimension of the span; more than r where it was cut."""
        return self._basis.rank if self._basis.n_basis is None else self._basis.n_basis

    @property
    def prediction_map(self) -> Float64[Arr, "m r"]:
        """C: f(Z) = C a. For closed_form.py."""
        return self._C

    @property
    def spectrum(self) -> Float64[Arr, " r"]:
        """s². For closed_form.py."""
        return self._s2

    @property
    def label_coordinates(self) -> Float64[Arr, " r"]:
        """β: the coordinates a of the site's function alone (μ = 0). For closed_form.py."""
        return self._beta

    def bound(self, rule: BoundRule = "tight") -> float:
        """max s² and its rounding, or trace(K_ZZ)/ν ≤ m κ/ν."""
        if rule == "a-priori":
            return self.n_unlabelled * self._diagonal_bound / self._ridge
        # s is off by δΦ_Z/√ν and by the rounding of the factor of P, relative to the largest.
        s = float(np.sqrt(self._s2.max(initial=0.0)))
        s = s * (1.0 + SPREAD * self.rank * UNIT + self._defect) + self._off_Z / float(np.sqrt(self._ridge))
        most = self.bound("a-priori")
        return float(max(min(s * s, most), LEAST_BOUND * most) * ROUND_UP)

    def response_error(self, weight: float) -> float:
        """ρ = 2(‖δΦ_X‖ + √μ‖δΦ_Z‖)/√ν, the basis's defect, the factor of P, one query and the cut
        (docs/research/mathematics.md)."""
        nu, b = self._ridge, self.bound()
        root_nu, root_mu = float(np.sqrt(nu)), float(np.sqrt(weight))
        data = 2.0 * (self._off_X + root_mu * self._off_Z * self._seen) / root_nu
        # The error of the answer itself where no factor moved: ‖δΦ_Z‖ ‖w‖, in units of √b.
        direct = self._off_Z / root_nu / float(np.sqrt(b)) if b > 0.0 else 0.0
        return float(data + direct + self._defect + self._query_rounding(weight) + self.cut_cost(weight))

    def _query_rounding(self, weight: float) -> float:
        """Of C a, at ‖a‖ for unit: no function answers so, and agreement carries it √(1 + μb) times over."""
        grown = float(np.sqrt(weight * self.bound())) if self._by_qr else weight * self.bound()
        return SPREAD * float(np.sqrt(self.rank)) * UNIT * (4.0 + 2.0 * grown)

    def cut_cost(self, weight: float) -> float:
        """(√tr tail_X + √(μ tr tail_Z))/√ν, tail(x) = k(x, x) − ‖φ(x)‖²: the reach of all functions left out together."""
        if not self._basis.is_cut:
            return 0.0
        return float((self._tail_X + np.sqrt(weight) * self._tail_Z) / np.sqrt(self._ridge))

    def _coordinates(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part
    ) -> Float64[Arr, "r k"]:
        a: Arr = self._C.T @ targets
        a *= weights
        if part == "affine":
            a += self._beta[:, None]
        a /= 1.0 + self._s2[:, None] * weights
        return a

    def respond(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part = "affine"
    ) -> Float64[Arr, "m k"]:
        """C a(t, μ); without β for the linear part."""
        return self._C @ self._coordinates(targets, weights, part)

    def on_labels(
        self, target: Float64[Arr, " m"], weight: float, rows: Int64[Ints, " k"] | slice = slice(None)
    ) -> tuple[Float64[Arr, " n"], Float64[Arr, "n n"]]:
        """Residuals y − E a, and G = I − E diag(1/(1 + μ s²)) Eᵀ with E = Φ_X R⁻¹ V."""
        a = self._coordinates(target[:, None], np.array([weight]), "affine")[:, 0]
        E = self._features_X[rows] @ self._R_inverse_V
        return self._y[rows] - E @ a, np.eye(len(E)) - (E / (1.0 + weight * self._s2)) @ E.T

    def label_map(self, weight: float, rows: Int64[Ints, " k"] | None = None) -> Float64[Arr, "k n"]:
        """C diag(1/(1 + μ s²)) Eᵀ with E = Φ_X R⁻¹ V, since β = Eᵀ y."""
        C = self._C if rows is None else self._C[rows]
        out: Arr = ((C / (1.0 + weight * self._s2)) @ self._R_inverse_V.T) @ self._features_X.T
        return out

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """W R⁻¹ V a are the coefficients on the basis points; w = R⁻¹ V a is orthonormal, so ‖f‖² = ‖w‖²."""
        a = self._coordinates(target[:, None], np.array([weight]), "affine")[:, 0]
        # Not (R⁻¹V) a: its terms cancel where features are large beside the ridge. A triangular solve errs by δR w in Q's norm.
        w = solve_triangular(self._R, self._V @ a, check_finite=False)
        residual = self._y - self._features_X @ w
        basis = self._basis
        local = float(residual @ residual + self._ridge * (w @ w))
        if basis.narrow and basis.transform_low is not None:
            # The product is as good as the largest of W times the largest of w: columns of 1e20 are brought to 1 first.
            up = np.ldexp(1.0, np.frexp(np.abs(basis.transform).max(axis=0))[1])
            high, low = matmul(
                (basis.transform / up, basis.transform_low / up), ((w * up)[:, None], np.zeros((len(w), 1)))
            )
            function = KernelExpansion(basis.kernel, basis.points, high[:, 0], low[:, 0])
        else:
            function = KernelExpansion(basis.kernel, basis.points, basis.transform @ w)
        # Rounded coefficients move f by as much in its own norm, and Q's norm sees that through all rows.
        off = (DD_EPS if basis.narrow else UNIT) * float(
            np.sqrt(basis.kernel.diagonal(basis.points)) @ (np.abs(basis.transform) @ np.abs(w))
        )
        off *= float(np.sqrt(self._ridge) + np.sqrt(self._trace_X) + np.sqrt(weight * self._trace_Z))
        # A share of Q is small where f fits its labels. a, whose square is ‖f(X)‖² + ν‖f‖², is not. Nor is |R||w|, by which the
        # solve errs.
        solved = float(np.linalg.norm(self._R)) * float(np.linalg.norm(w))
        off += self._query_rounding(weight) * (float(np.linalg.norm(a)) + solved)
        return Solution(function, self._C @ a, local, off)
