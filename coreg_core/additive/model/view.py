r"""One site's algebra for the additive objective: factor once, answer any (s, q, a) at any noise and prior.

    α = (N + τ²ΨΨᵀ)⁻¹ (y − a − S s − τ²Ψ Zᵀq)        w = τ²(Ψᵀα + Zᵀq)        Ψ = Φ − S Z        N = σ²I + κ11ᵀ
    answers  Z w,  Sᵀα,  1ᵀα                                                           (design, section 7.2)

κ is the variance of the site's random intercept, an offset of all its labels: its mean is κ 1ᵀα. It never leaves the site.

A row of weight ω has the noise σ²/ω. Its label, Φ and S arrive multiplied by √ω, which makes the noise σ² again. The column of
both intercepts, 1 above, is then √ω: ``level``.

T maps x = (s, q, a) to the sums of the answers (a times c); the solution is its fixed point. T is affine, labels are in
T(0) alone. With Ψ = U diag(ψ) Vᵀ one factor serves every σ² and τ², so tuning needs no new factor. κ is an update of rank one.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int64
from scipy.linalg import svd

from coreg_core.additive.model.smoother import Coupling, triangle_of
from coreg_core.additive.question_types import split, stack
from coreg_core.agreement.objective import ROUNDING
from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr, Ints


@dataclass(frozen=True)
class Hyper:
    """σ² of the site's labels, τ² of its own part."""

    noise: float
    prior: float

    def __post_init__(self) -> None:
        if not all(np.isfinite(x) and x > 0 for x in (self.noise, self.prior)):
            raise UsageError(f"noise σ²={self.noise!r}, prior τ²={self.prior!r}: both need a finite number above 0.")

    def times(self, noise: float, prior: float) -> "Hyper":
        """With multipliers."""
        return Hyper(self.noise * noise, self.prior * prior)


@dataclass(frozen=True, eq=False)
class AdditiveView:
    """A site without its tuning: labels y (n,), own features Φ (n, d) and Z (m, d) with Zᵀ1 = 0, S, and κ.

    n = 0 and m = 0 are allowed. ``weighted``: √ω of rows that were multiplied by it; None: all rows weigh 1.
    """

    y: Float64[Arr, " n"]
    labelled: Float64[Arr, "n d"]
    shared: Float64[Arr, "m d"]
    coupling: Coupling
    random_intercept: float = 0.0
    weighted: Float64[Arr, " n"] | None = None

    @cached_property
    def level(self) -> Float64[Arr, " n"]:
        """The column of the intercepts: 1, or √ω."""
        return np.ones(len(self.y)) if self.weighted is None else self.weighted

    @property
    def n_labelled(self) -> int:
        """n."""
        return len(self.y)

    @property
    def n_unlabelled(self) -> int:
        """m."""
        return len(self.shared)

    @cached_property
    def psi(self) -> Arr:
        """Ψ = Φ − S Z (n, d): the site's own part at its rows, minus the smoother's reading of it."""
        return self.labelled - self.coupling.forward(self.shared)

    @cached_property
    def _factor(self) -> tuple[Arr, Arr]:
        """(U (n, r), ψ² (r,)) of ΨΨᵀ, r = min(n, d), by the SVD of Ψ: never squared, so small ψ keep their digits."""
        if not self.psi.size:
            return np.zeros((self.n_labelled, 0)), np.zeros(0)
        U, psi, _ = svd(self.psi, full_matrices=False, check_finite=False)
        return U, psi * psi

    def _without_intercept(self, right: Float64[Arr, "n k"], hyper: Hyper) -> Float64[Arr, "n k"]:
        """(σ²I + τ²ΨΨᵀ)⁻¹ of these columns. What U does not span has the eigenvalue σ², so no (n, n) matrix is needed."""
        U, squares = self._factor
        spanned = U.T @ right
        out: Arr = U @ (spanned / (hyper.noise + hyper.prior * squares)[:, None])
        if U.shape[1] < len(U):
            rest = right - U @ spanned
            out += (rest - U @ (U.T @ rest)) / hyper.noise  # the second projection leaves no rounding in the span of U
        return out

    def _inverse(self, right: Float64[Arr, "n k"], hyper: Hyper) -> Float64[Arr, "n k"]:
        """(N + τ²ΨΨᵀ)⁻¹ of these columns."""
        out = self._without_intercept(right, hyper)
        if self.random_intercept:
            level = self._without_intercept(self.level[:, None], hyper)
            share = self.random_intercept / (1.0 + self.random_intercept * float(self.level @ level[:, 0]))
            out -= level * (share * (self.level @ out))
        return out

    def _without_noise(self, right: Float64[Arr, " n *k"], hyper: Hyper) -> Float64[Arr, " n *k"]:
        """N⁻¹ of these columns; ‖N⁻¹‖ ≤ σ⁻²."""
        share = self.random_intercept / (hyper.noise + float(self.level @ self.level) * self.random_intercept)
        out: Arr = (right - np.multiply.outer(self.level, share * (self.level @ right))) / hyper.noise
        return out

    def own_intercept(self, alpha: Float64[Arr, "n k"]) -> Float64[Arr, " k"]:
        """κ 1ᵀα: the mean of the random intercept."""
        mean: Arr = self.random_intercept * (self.level @ alpha)
        return mean

    def keep(self, rows: Int64[Ints, " k"]) -> "AdditiveView":
        """The same site with only these labelled rows."""
        weighted = None if self.weighted is None else self.weighted[rows]
        coupling = self.coupling.keep(rows)
        return replace(self, y=self.y[rows], labelled=self.labelled[rows], coupling=coupling, weighted=weighted)

    def solve(
        self, x: Float64[Arr, "r k"], labels: Float64[Arr, "n k"] | None, hyper: Hyper
    ) -> tuple[Float64[Arr, "n k"], Float64[Arr, "d k"]]:
        """(α, w) at x. ``labels`` a column each (y, or a probe's signs); None: the linear part."""
        s, q, a = split(x)
        pulled = self.shared.T @ q
        right = -(self.coupling.forward(s) + hyper.prior * (self.psi @ pulled)) - np.multiply.outer(self.level, a)
        if labels is not None:
            right += labels
        alpha = self._inverse(right, hyper)
        w: Arr = hyper.prior * (self.psi.T @ alpha + pulled)
        return alpha, w

    def answer(self, x: Float64[Arr, "r k"], labels: Float64[Arr, "n k"] | None, hyper: Hyper) -> Float64[Arr, "r k"]:
        """(Z w, Sᵀα, 1ᵀα), one below the other."""
        alpha, w = self.solve(x, labels, hyper)
        return stack(self.shared @ w, self.coupling.backward(alpha), self.level @ alpha)

    def smoothed(self, rho_s: Float64[Arr, "m k"], hyper: Hyper) -> Float64[Arr, "l k"]:
        """(SᵀN⁻¹S ρ_s, 1ᵀN⁻¹S ρ_s), m + 1 rows: the certificate's second exchange."""
        read = self._without_noise(self.coupling.forward(rho_s), hyper)
        return np.concatenate([self.coupling.backward(read), (self.level @ read)[None]])

    def gradient_norm(
        self,
        rho_s: Float64[Arr, " m"],
        delta: Float64[Arr, " m"],
        hyper: Hyper,
        rounding_s: float = 0.0,
        rounding_delta: float = 0.0,
    ) -> float:
        """τ²‖g‖² with g = 2(ΨᵀN⁻¹S ρ_s − Zᵀδ): the certificate's third exchange.

        ``rounding_s`` and ``rounding_delta`` bound the rounding errors of ρ_s and δ (2-norms). The answer includes them, and the
        rounding of g itself, which is a difference.
        """
        read = self._without_noise(self.coupling.forward(rho_s[:, None])[:, 0], hyper)
        through, direct = self.psi.T @ read, self.shared.T @ delta
        norm = float(np.linalg.norm(through - direct))
        size = float(np.linalg.norm(self.psi)) * self.coupling_norm / hyper.noise
        reach = float(np.linalg.norm(self.shared))
        norm += ROUNDING * float(np.linalg.norm(through) + np.linalg.norm(direct))
        norm += size * rounding_s + reach * rounding_delta
        return hyper.prior * (2.0 * norm) ** 2

    @cached_property
    def coupling_norm(self) -> float:
        """‖S‖₂, rounded up."""
        L = self.coupling.compressed()
        return float(np.linalg.norm(L, 2)) if L.size else 0.0

    def gain(self, hyper: Hyper) -> float:
        """‖T_lin‖₂ of this site, rounded up: ‖answer‖₂ ≤ gain · ‖x‖₂ for a linear question.

        T is no contraction (gains of 12 to 22 600). Fixed-point encoding, as in secure aggregation, needs the sum of these.
        Exact: with Z = Q R and S = L Q'ᵀ the operator has the norm of a small matrix, without m.
        """
        R, L = triangle_of(self.shared), self.coupling.compressed()
        n, d = self.labelled.shape
        pulled = np.concatenate([np.zeros((d, L.shape[1])), R.T, np.zeros((d, 1))], axis=1)
        right = -(
            np.concatenate([L, np.zeros((n, R.shape[0])), self.level[:, None]], axis=1)
            + hyper.prior * (self.psi @ pulled)
        )
        alpha = self._inverse(right, hyper)
        w = hyper.prior * (self.psi.T @ alpha + pulled)
        out = np.concatenate([R @ w, L.T @ alpha, (self.level @ alpha)[None]])
        return float(np.linalg.norm(out, 2))

    @cached_property
    def _squared_norms(self) -> tuple[float, float]:
        R, L = triangle_of(self.shared), self.coupling.compressed()
        beside = np.concatenate([L, self.level[:, None]], axis=1)
        shared, labelled = ((float(np.linalg.norm(A, 2)) if A.size else 0.0) for A in (R, beside))
        return shared**2, labelled**2

    def reach(self, hyper: Hyper) -> float:
        """τ²‖Z‖₂², rounded up: its sum turns a gap into a bound on s."""
        return hyper.prior * self._squared_norms[0]

    def stretch(self, hyper: Hyper) -> float:
        r"""κ = max(τ²‖Z‖₂², σ⁻²‖(S, 1)‖₂²), rounded up: the limit of a linear answer y to x.

            q·y_s − s·y_q − a y_a = ‖w‖²/τ² + αᵀNα ≥ ‖y‖²/κ,        so gain ≤ κ

        since y = C ξ with ξ = (w/τ, N^½α), ‖C‖₂² ≤ κ and ξ = (I + K)⁻¹Cᵀx for a skew K (docs/research/mathematics.md).
        It depends on features and hyperparameters alone, so a refusal by it discloses nothing of an answer.
        """
        shared, labelled = self._squared_norms
        return max(hyper.prior * shared, labelled / hyper.noise)
