r"""One site's algebra: factor once, then answer respond(t, μ) for any target and weight, and
predict anywhere.

    respond(t, μ) = f(Z),   f = argmin_f ‖y − f(X)‖² + ν‖f‖² + μ‖f(Z) − t‖²
    (docs/research/mathematics.md)

`SpectralView` serves a finite span (semi-parametric, linear), `FunctionSpaceView` the exact one;
`make_view` chooses. At the end a site owns a `KernelExpansion`, and its own left-out labels choose
λ on a path.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64
from scipy.linalg import cho_factor, cho_solve, qr, solve_triangular
from scipy.linalg.blas import dtrsv

from coreg_core.arrays import Arr, Ints, block_rows
from coreg_core.errors import SingularSystem, UsageError
from coreg_core.kernels import Kernel, Linear, expand
from coreg_core.spans import Basis, EveryPoint, LinearFeatures, Span, make_basis

AnswerPart: TypeAlias = Literal["affine", "linear"]


@dataclass(frozen=True)
class KernelExpansion:
    """f(x) = k(x, B) c: the function that a site owns at the end, and the content of its model
    file.
    """

    kernel: Kernel
    points: Float64[Arr, "p d"]
    coef: Float64[Arr, " p"]

    def predict(self, X: Float64[Arr, "n d"]) -> Float64[Arr, " n"]:
        """f(X), in blocks: memory does not grow with n × p."""
        return expand(self.kernel, X, self.points, self.coef[:, None])[:, 0]


@dataclass(frozen=True)
class Solution:
    """The function that answers one (t, μ), with its terms of the objective."""

    function: KernelExpansion
    prediction: Float64[Arr, " m"]
    local_objective: float  # ‖y − f(X)‖² + ν‖f‖²

    def predict(self, X: Float64[Arr, "n d"]) -> Float64[Arr, " n"]:
        """f(X)."""
        return self.function.predict(X)


_EPS = float(np.finfo(float).eps)


def positive_factor(matrix: Arr, what: str, remedy: str) -> tuple[Arr, bool]:
    """The factor, in place, of a positive definite matrix; SingularSystem where rounding outweighs
    that.
    """
    try:
        factor, lower = cho_factor(matrix, lower=True, check_finite=False, overwrite_a=True)
    except np.linalg.LinAlgError:
        raise SingularSystem(f"{what} is singular in floating point: {remedy}.") from None
    return factor, bool(lower)


def norm_bound(S: Float64[Arr, "k k"]) -> float:
    """At least the largest eigenvalue of a positive semi-definite matrix: the smallest of three
    norms, in O(k²).
    """
    row_sum = max(
        (float(np.abs(S[i : i + 256]).sum(axis=1).max()) for i in range(0, len(S), 256)),
        default=0.0,
    )
    return max(0.0, min(row_sum, float(np.linalg.norm(S)), float(np.trace(S))))


class FunctionSpaceView:
    r"""The exact span in function space: a Gaussian process's posterior on Z, never K⁻¹.

    $m_0 = K_{ZX}(K_{XX} + \nu I)^{-1} y$, $\Sigma = K_{ZZ} - K_{ZX}(K_{XX} + \nu I)^{-1}K_{XZ}$,
    $B = I + (\mu/\nu)\Sigma$;  $\mathrm{respond}(t, \mu) = m_0 + (I - B^{-1})(t - m_0)$.

    Set-up O(m² n + m³/3) for each of ``n_weights`` μ in use, a round O(m²) for each column.
    SingularSystem: rounding of K outweighs ν, or the identity in B.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Float64[Arr, "n d"],
        y: Float64[Arr, " n"],
        Z: Float64[Arr, "m d"],
        ridge: float,
        *,
        n_weights: int = 1,
    ):
        self._kernel = kernel
        self._X = X
        self._y = y
        self._Z = Z
        self.ridge = ridge
        self.n_unlabelled = m = len(Z)
        self.rank = len(X) + m
        self._diagonal = kernel.diagonal(Z) if m else np.zeros(0)
        size = float(kernel.diagonal(X).sum())
        K_XX = kernel(X, X)
        if not _EPS * size < 0.25 * ridge:
            raise SingularSystem(
                f"the labelled rows' kernel matrix at ridge={ridge:g} is singular in floating"
                f" point: of size {size:.1e}, it leaves the ridge no digit; raise the ridge,"
                " rescale the features, or take form='semi-parametric'."
            )
        K_XX.flat[:: len(X) + 1] += ridge
        what = f"the labelled rows' kernel matrix at ridge={ridge:g}"
        self._L = positive_factor(K_XX, what, "raise the ridge")[0]
        # Σ = K_ZZ − HᵀH stays symmetric in rounding; through (K_XX + νI)⁻¹ m₀ would carry its
        # rounding times ½√(‖K_ZZ‖/ν).
        self._H = self._forward(kernel(X, Z))
        self._whitened_y = self._forward(y)
        self.posterior_mean: Arr = self._H.T @ self._whitened_y
        self.posterior_covariance = np.empty((m, m))
        step = block_rows(m)
        for rows in (slice(start, start + step) for start in range(0, m, step)):
            np.subtract(
                kernel(Z[rows], Z),
                self._H[:, rows].T @ self._H,
                out=self.posterior_covariance[rows],
            )
        self._factors: OrderedDict[float, tuple[Arr, bool]] = OrderedDict()
        self.most_factors = max(
            n_weights, 8_000_000 // max(1, m * m)
        )  # about 64 MB, or all that a path needs

    def _forward(self, right: Arr) -> Arr:
        """L⁻¹ times it, with K_XX + νI = L Lᵀ."""
        return np.asarray(solve_triangular(self._L, right, lower=True, check_finite=False))

    def _backward(self, right: Arr) -> Arr:
        """L⁻ᵀ times it."""
        return np.asarray(
            solve_triangular(self._L, right, lower=True, trans="T", check_finite=False)
        )

    def bound(self) -> float:
        """b_v of the certificates, at least the largest s²: the smallest of three norms of Σ, over
        ν, in O(m²).
        """
        return norm_bound(self.posterior_covariance) / self.ridge

    def factor(self, weight: float) -> tuple[Arr, bool]:
        """The Cholesky factor of B at this μ, of the last ones in use."""
        if weight in self._factors:
            self._factors.move_to_end(weight)
            return self._factors[weight]
        while len(self._factors) >= self.most_factors:
            self._factors.popitem(
                last=False
            )  # before the new one is made: two would not fit at m = 10⁴
        what = f"I + (μ/ν)Σ at μ={weight:g}, ν={self.ridge:g}"
        if not weight * _EPS * float(self._diagonal.sum()) / self.ridge < 0.25:
            raise SingularSystem(
                f"{what} is singular in floating point: rounding of K outweighs the identity; lower"
                " the coupling, or raise the ridge."
            )
        B = self.posterior_covariance.T.copy(order="F")  # LAPACK factors it in place
        B *= weight / self.ridge
        B.T.flat[:: self.n_unlabelled + 1] += 1.0
        self._factors[weight] = positive_factor(B, what, "lower the coupling, or raise the ridge")
        return self._factors[weight]

    def solve_B(self, weight: float, columns: Float64[Arr, "m k"]) -> Float64[Arr, "m k"]:
        """B⁻¹ columns, by the factor."""
        if weight == 0.0 or not self.n_unlabelled:
            return columns.copy()
        factor = self.factor(weight)
        if columns.shape[1] > 1:
            return np.asarray(cho_solve(factor, columns, check_finite=False))
        column = columns.reshape(-1).copy()
        for trans in (
            0,
            1,
        ):  # at the memory's speed; LAPACK's potrs packs the factor anew for a single column
            column = dtrsv(factor[0], column, lower=1, trans=trans, overwrite_x=1)
        return column[:, None]

    def respond(
        self,
        targets: Float64[Arr, "m k"],
        weights: Float64[Arr, " k"],
        part: AnswerPart = "affine",
    ) -> Float64[Arr, "m k"]:
        """m₀ + (I − B⁻¹)(t − m₀) = t − B⁻¹(t − m₀); the linear part is t − B⁻¹ t, and zeros stay
        zeros.
        """
        answer = targets.copy()
        offset = targets - self.posterior_mean[:, None] if part == "affine" else targets
        for weight in dict.fromkeys(weights.tolist()):  # columns that share a μ share a solve
            columns = weights == weight
            if part == "affine" or targets[:, columns].any():
                answer[:, columns] -= self.solve_B(weight, offset[:, columns])
        return answer

    def on_labels(
        self,
        target: Float64[Arr, " m"],
        weight: float,
        rows: Int64[Ints, " k"] | slice = slice(None),
    ) -> tuple[Float64[Arr, " n"], Float64[Arr, "n n"]]:
        """Residuals ν c_X, and G = ν L⁻ᵀ(I + (μ/ν) H B⁻¹ Hᵀ)L⁻¹, as [(K + D)⁻¹]_XX of the stacked
        system is by blocks.
        """
        scale = weight / self.ridge
        solved = self.solve_B(weight, np.column_stack([target - self.posterior_mean, self._H.T]))
        residual = self._backward(self._whitened_y - scale * (self._H @ solved[:, 0]))
        G = self._backward(
            self._backward(np.eye(len(self._X)) + scale * (self._H @ solved[:, 1:])).T
        )
        return self.ridge * residual[rows], self.ridge * G[rows][:, rows]

    def label_map(
        self, weight: float, rows: Int64[Ints, " k"] | None = None
    ) -> Float64[Arr, "k n"]:
        """B⁻¹ K_ZX (K_XX + νI)⁻¹ = B⁻¹ Hᵀ L⁻¹; of some instances by the columns of B⁻¹ that are
        theirs.
        """
        if rows is None:
            return self._backward(self.solve_B(weight, self._H.T).T).T
        return self._backward(self._H @ self.solve_B(weight, np.eye(self.n_unlabelled)[:, rows])).T

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """c_Z = (μ/ν) B⁻¹(t − m₀), c_X = L⁻ᵀ(L⁻¹y − H c_Z): never through K⁻¹."""
        shrunk = self.solve_B(weight, (target - self.posterior_mean)[:, None])[:, 0]
        c_Z = (weight / self.ridge) * shrunk
        c_X = self._backward(self._whitened_y - self._H @ c_Z)
        prediction = target - shrunk
        residual = self.ridge * c_X  # y − f(X), since (K_XX + νI) c_X = y − K_XZ c_Z
        norm = c_X @ (self._y - residual) + c_Z @ prediction
        if weight == 0.0:  # coefficients on unlabelled points vanish: one RLSR solution on X alone
            function = KernelExpansion(self._kernel, self._X, c_X)
        else:
            function = KernelExpansion(
                self._kernel, np.concatenate([self._X, self._Z]), np.concatenate([c_X, c_Z])
            )
        return Solution(function, prediction, float(residual @ residual + self.ridge * norm))


# A finite span, factored once: RᵀR = ΦᵀΦ + νI,   P = Φ_Z R⁻¹,   β = R⁻ᵀ Φᵀ y,   w = R⁻¹ a,   ‖f‖ =
# ‖w‖
#     a(t, μ) = (I + μ PᵀP)⁻¹(β + μ Pᵀt),   respond(t, μ) = P a


class SpectralView:
    """`View` over the span of a basis. Set-up O((n + m) p r), a round O(m r); memory O((n +
    m) r).
    """

    def __init__(
        self,
        basis: Basis,
        X: Float64[Arr, "n d"],
        y: Float64[Arr, " n"],
        Z: Float64[Arr, "m d"],
        ridge: float,
    ):
        self.basis = basis
        self.ridge = ridge
        self.rank = basis.rank
        self.n_unlabelled = len(Z)
        r = basis.rank
        self._y = y
        self._Phi = np.empty((len(X), r))
        step = max(block_rows(len(basis.points)), 8 * r)
        upper: Arr = np.eye(r, r + 1) * np.sqrt(ridge)
        for start in range(0, len(X), step):
            rows = slice(start, start + step)
            self._Phi[rows] = basis.features(X[rows])
            # QR, not a Cholesky factor of ΦᵀΦ + νI: squaring would lose the ridge beside large
            # features.
            below = np.column_stack([self._Phi[rows], y[rows]])
            [upper] = qr(
                np.concatenate([upper[:r], below]), overwrite_a=True, mode="r", check_finite=False
            )
        self._R = np.asfortranarray(upper[:r, :r])
        on_labels = upper[:r, r]
        size = float(np.linalg.norm(self._R))
        if not np.finfo(float).eps * size <= 0.25 * np.sqrt(ridge):
            raise SingularSystem(
                f"the labelled rows' features, of size {size:.1e}, leave no digit of"
                f" ridge={ridge:g}: raise the ridge, or rescale the features."
            )
        onto = solve_triangular(
            self._R, basis.transform.T, trans="T", check_finite=False
        ).T  # (p, r): W R⁻¹
        self.prediction_map: Arr = np.empty((len(Z), r))  # P
        for start in range(0, len(Z), step):
            rows = slice(start, start + step)
            np.matmul(basis.kernel(Z[rows], basis.points), onto, out=self.prediction_map[rows])
        self.gram: Arr = self.prediction_map.T @ self.prediction_map
        self._factors: dict[float, Arr] = {}
        self.label_coordinates: Arr = on_labels  # β

    def bound(self) -> float:
        """b_v of the certificates, at least the largest s²: the smallest of three norms of PᵀP."""
        return norm_bound(self.gram)

    def _coordinates(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: AnswerPart
    ) -> Float64[Arr, "r k"]:
        a: Arr = self.prediction_map.T @ targets
        a *= weights
        if part == "affine":
            a += self.label_coordinates[:, None]
        return self._shrunk(a, weights)

    def precision(self, weight: float) -> Float64[Arr, "m m"]:
        """B⁻¹ = I − μ P (I + μ PᵀP)⁻¹ Pᵀ."""
        half = solve_triangular(
            self._factor(weight), self.prediction_map.T, lower=True, check_finite=False
        )
        return np.asarray(np.eye(self.n_unlabelled) - weight * (half.T @ half))

    def _factor(self, weight: float) -> Float64[Arr, "r r"]:
        """The Cholesky factor of I + μ PᵀP, of every weight in use: those of a path."""
        if weight not in self._factors:
            matrix = weight * self.gram
            matrix.flat[:: len(matrix) + 1] += 1.0
            what = f"I + μPᵀP at μ={weight:g}, ν={self.ridge:g}"
            self._factors[weight] = positive_factor(
                matrix.T, what, "lower the coupling, or raise the ridge"
            )[0]
        return self._factors[weight]

    def _shrunk(
        self, a: Float64[Arr, "r k"], weights: Float64[Arr, " k"] | float
    ) -> Float64[Arr, "r k"]:
        """(I + μ PᵀP)⁻¹ a."""
        out = np.empty_like(a)
        for weight in np.unique(weights):
            columns = np.broadcast_to(weights == weight, a.shape[1:])
            out[:, columns] = cho_solve(
                (self._factor(float(weight)), True), a[:, columns], check_finite=False
            )
        return out

    def respond(
        self,
        targets: Float64[Arr, "m k"],
        weights: Float64[Arr, " k"],
        part: AnswerPart = "affine",
    ) -> Float64[Arr, "m k"]:
        """P a(t, μ); without β for the linear part."""
        return self.prediction_map @ self._coordinates(targets, weights, part)

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """W w are the coefficients on the basis points."""
        a = self._coordinates(target[:, None], np.array([weight]), "affine")[:, 0]
        w = solve_triangular(self._R, a, check_finite=False)
        residual = self._y - self._Phi @ w
        function = KernelExpansion(self.basis.kernel, self.basis.points, self.basis.transform @ w)
        return Solution(
            function, self.prediction_map @ a, float(residual @ residual + self.ridge * (w @ w))
        )

    def on_labels(
        self,
        target: Float64[Arr, " m"],
        weight: float,
        rows: Int64[Ints, " k"] | slice = slice(None),
    ) -> tuple[Float64[Arr, " n"], Float64[Arr, "n n"]]:
        """Residuals y − E a, and G = I − E (I + μ PᵀP)⁻¹ Eᵀ with E = Φ R⁻¹."""
        a = self._coordinates(target[:, None], np.array([weight]), "affine")[:, 0]
        E = self._on_labelled(rows)
        return self._y[rows] - E @ a, np.eye(len(E)) - E @ self._shrunk(E.T, weight)

    def label_map(
        self, weight: float, rows: Int64[Ints, " k"] | None = None
    ) -> Float64[Arr, "k n"]:
        """P (I + μ PᵀP)⁻¹ Eᵀ, since β = Eᵀ y."""
        P = self.prediction_map if rows is None else self.prediction_map[rows]
        return np.asarray(P @ self._shrunk(self._on_labelled(slice(None)).T, weight))

    def _on_labelled(self, rows: Int64[Ints, " k"] | slice) -> Float64[Arr, "k r"]:
        """E = Φ R⁻¹, of these rows."""
        E: Arr = solve_triangular(self._R, self._Phi[rows].T, trans="T", check_finite=False).T
        return E


View: TypeAlias = FunctionSpaceView | SpectralView
_HALF_OF_THE_DIGITS = 1e8


def make_view(  # noqa: PLR0913 - a view is its span, kernel, rows and ridge
    span: Span,
    kernel: Kernel,
    X: Float64[Arr, "n d"],
    y: Float64[Arr, " n"],
    Z: Float64[Arr, "m d"],
    ridge: float,
    *,
    n_weights: int = 1,
) -> View:
    """Factor a site's data once."""
    if not (np.isfinite(ridge) and ridge > 0):
        raise UsageError(f"ridge={ridge!r}: needs a finite number above 0.")
    if not isinstance(span, EveryPoint):
        return SpectralView(make_basis(span, kernel, X, Z), X, y, Z, ridge)
    size = (
        float(kernel.diagonal(X).sum() + kernel.diagonal(Z).sum())
        if isinstance(kernel, Linear)
        else 0.0
    )
    if size > _HALF_OF_THE_DIGITS * ridge:
        # Every linear function is in the exact span, so that d coordinates hold the same optimum. K
        # of size Σ‖x‖² loses a small ridge where features do not: they are used where K would leave
        # fewer than half of the digits.
        return SpectralView(make_basis(LinearFeatures(), kernel, X, Z), X, y, Z, ridge)
    return FunctionSpaceView(kernel, X, y, Z, ridge, n_weights=n_weights)
