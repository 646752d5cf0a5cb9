r"""Rounds and bytes of conjugate gradients, without a preconditioner and with one made from sums alone.

    python benchmarks/preconditioner.py [--quick] [--write]      --write saves it in benchmarks/results/performance.json;
    --quick makes one draw

H = I − R̄, R̄ = (1/M) Σ_v R_v, 0 ⪯ R̄ ≺ I: the top of R̄'s spectrum makes H slow. A start-up round asks R̄ at k random
orthonormal columns Ω, and with Y = R̄ Ω (and a shift of the size of rounding, subtracted afterwards)

    R̄ ≈ Y (ΩᵀY)⁻¹ Yᵀ = U Θ Uᵀ,    0 ⪯ Θ ≺ I,      P⁻¹ = (I − U Θ Uᵀ)⁻¹ = I + U Θ(I − Θ)⁻¹ Uᵀ

(Nyström: Frangella, Tropp, Udell, "Randomized Nyström preconditioning", SIAM J. Matrix Anal. Appl. 44, 2023, Algorithm 2.1).
Three kinds: *probes*, as above; *twice*, k/2 columns, and the new directions of their images in a second start-up round:
Nyström on all k (block Krylov); *eigenvectors*, the leading ones of R̄ to rounding, at no cost. No start-up of as many columns
is much better than these.

Probes follow from a seed, so sites could draw them themselves. Only their answers count, half a round's bytes each.
Rounds are to the same certificate, and to the same true error from the closed form. The script asserts that its loop without a
preconditioner takes as many rounds as the schedule, and that every result is within its tolerance of the closed form.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from harness import PERFORMANCE, arguments, keep  # before numpy

# isort: split
import numpy as np
from scipy.linalg import solve_triangular
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.datasets import load_diabetes, load_digits

from coreg_core.agreement.closed_form import consensus_closed_form
from coreg_core.agreement.objective import consensus_certificate, consensus_weight
from coreg_core.agreement.schedules import make_schedule, run_in_memory
from coreg_core.agreement.schedules.conjugate_gradient import VERIFY_EVERY
from coreg_core.agreement.schedules.schedule import Terms
from coreg_core.agreement.views import View
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.plan import Agreement
from coreg_sim.federation.problems import Problem, generated
from site_agent.machine.factoring import factor, units
from site_agent.machine.site_data import PrivateData

COLUMNS, DRAWS, EIGENVECTORS = (4, 8, 16, 32, 64), 3, 8
EACH = 1e-5  # error an instance, 2-norm over √m: where coreg-sim stops
ROUND_TRIP, BANDWIDTH = 0.05, 12.5e6  # s and bytes/s: 100 Mbit/s each way between organisations
Preconditioner = Callable[[Arr], Arr]  # P⁻¹ r


def of_table(X: Arr, y: Arr, columns: Sequence[Sequence[int]], n: int, m: int) -> Problem:
    """A real table's columns split among sites, n labelled rows each and m shared; attributes in units of their deviation."""
    order = np.random.default_rng(0).permutation(len(y))
    deviation = X.std(axis=0)
    X, y = (X / np.where(deviation > 0.0, deviation, 1.0))[order], y[order].astype(float)
    sites = {}
    for v, own in enumerate(columns):
        rows = slice(m + v * n, m + (v + 1) * n)
        sites[f"site-{v}"] = PrivateData(X[rows][:, own].copy(), y[rows], X[:m][:, own].copy(), "benchmark")
    return Problem(sites, (), y[:0])


def diabetes() -> Problem:
    """The demonstration's: a clinic and two laboratories."""
    X, y = load_diabetes(return_X_y=True, scaled=False)
    return of_table(X, y, ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9)), 15, 250)


def digits() -> Problem:
    """Eight sites, each with one row of the picture's pixels."""
    X, y = load_digits(return_X_y=True)
    return of_table(X, y, [range(8 * v, 8 * v + 8) for v in range(8)], 50, 1000)


EXACT, SPAN = Agreement(label_units="standardised"), Agreement(form="semi-parametric", label_units="standardised")
LANDMARKS = Agreement(form="semi-parametric", landmarks=20, label_units="standardised")
LINEAR = Agreement(form="linear", label_units="standardised")
CASES: tuple[tuple[str, Callable[[], Problem], Agreement, tuple[float, ...]], ...] = (
    ("generated", lambda: generated(4, 50, 500, 5, seed=0), EXACT, (0.1, 1.0, 10.0)),
    ("generated", lambda: generated(16, 50, 500, 5, seed=0), EXACT, (0.1, 1.0, 10.0)),
    ("generated", lambda: generated(8, 100, 5000, 8, seed=0), SPAN, (0.01, 0.1, 1.0, 10.0)),
    ("generated", lambda: generated(4, 50, 100_000, 8, seed=0), SPAN, (0.1,)),
    ("generated", lambda: generated(3, 100, 1000, 8, seed=0), LANDMARKS, (0.1, 1.0, 10.0)),
    ("diabetes", diabetes, EXACT, (0.01, 0.1, 1.0, 10.0)),
    ("digits", digits, SPAN, (0.01, 0.1, 1.0, 10.0)),
    ("digits", digits, LINEAR, (0.1, 1.0)),
)


@dataclass(frozen=True)
class Federation:
    """The coordinator's questions at one coupling, and the closed form."""

    views: list[View]
    coupling: float
    squared: float  # Q(0)

    @property
    def weight(self) -> float:
        return consensus_weight(self.coupling, len(self.views))

    @property
    def m(self) -> int:
        return self.views[0].n_unlabelled

    def terms(self) -> Terms:
        """The service's own tolerance on the gap, and `EACH` on predictions."""
        bounds = tuple(v.bound() for v in self.views)
        return Terms((self.coupling,), bounds, self.squared, 1e-10, EACH * float(np.sqrt(self.m)), 5000)

    def mean(self, targets: Arr, part: str = "linear") -> Arr:
        """(1/M) Σ_v of the answers, in site order."""
        T, weights = np.asfortranarray(targets), np.full(targets.shape[1], self.weight)
        return sum(v.respond(T, weights, part) for v in self.views) / len(self.views)  # type: ignore[arg-type]

    def answers(self, z: Arr) -> list[Arr]:
        return [v.respond(np.ascontiguousarray(z[:, None]), np.array([self.weight]))[:, 0] for v in self.views]


def federation(problem: Problem, objective: Agreement, coupling: float) -> Federation:
    views, squared = [], 0.0
    for name in sorted(problem.sites):
        data = problem.sites[name]
        shift, divisor = units(data.y, objective.label_units)
        y = (data.y - shift) / divisor
        views.append(factor(objective, data, y))
        squared += float(y @ y)
    return Federation(views, coupling, squared)


# --- preconditioners ----------------------------------------------------------------------------------------------


def nystrom(probes: Arr, images: Arr) -> Preconditioner:
    """P⁻¹ from Ω with orthonormal columns and Y = R̄ Ω; the shift makes ΩᵀY positive definite in floating point."""
    shift = float(np.sqrt(len(images)) * np.spacing(np.linalg.norm(images)))
    Y = images + shift * probes
    core = probes.T @ Y
    root = np.linalg.cholesky(0.5 * (core + core.T))
    U, s, _ = np.linalg.svd(solve_triangular(root, Y.T, lower=True).T, full_matrices=False)
    return along(U, np.maximum(0.0, s * s - shift))


def along(U: Arr, theta: Arr) -> Preconditioner:
    """I + U Θ(I − Θ)⁻¹ Uᵀ."""
    theta = np.minimum(theta, 1.0 - 1e-12)
    gain = theta / (1.0 - theta)
    return lambda r: r + U @ (gain * (U.T @ r))


def orthonormal(of: Federation, k: int, seed: int) -> Arr:
    Q: Arr = np.linalg.qr(np.random.default_rng(seed).normal(size=(of.m, k)))[0]
    return Q


def probes(of: Federation, k: int, seed: int) -> Preconditioner:
    Omega = orthonormal(of, k, seed)
    return nystrom(Omega, of.mean(Omega))


def twice(of: Federation, k: int, seed: int) -> Preconditioner:
    first = orthonormal(of, k // 2, seed)
    images = of.mean(first)
    new = images - first @ (first.T @ images)
    new -= first @ (first.T @ new)
    second: Arr = np.linalg.qr(new)[0]
    return nystrom(np.hstack([first, second]), np.hstack([images, of.mean(second)]))


def eigenvectors(of: Federation, k: int) -> Preconditioner:
    R = LinearOperator((of.m, of.m), matvec=lambda t: of.mean(t.reshape(-1, 1))[:, 0], dtype=float)
    theta, U = eigsh(R, k=k, v0=np.ones(of.m))
    return along(U, theta)


# --- the recursion ------------------------------------------------------------------------------------------------


def rounds(of: Federation, best: list[Arr], precondition: Preconditioner | None, start_up: int) -> dict[str, int]:
    """Rounds to the certificate and to the same true error, as the schedule counts: the affine one, directions, verified."""
    terms, inverse = of.terms(), precondition or (lambda r: r)
    bounds = np.array(terms.bounds)

    def met(residual: Arr, scale: float = 0.0) -> bool:
        c = consensus_certificate(float(np.linalg.norm(residual)), scale, of.weight, bounds)
        return terms.met_by(c.gap, c.prediction_bound)

    def error(z: Arr) -> float:
        return float(max(np.linalg.norm(a - b) for a, b in zip(of.answers(z), best, strict=True)))

    b = of.mean(np.zeros((of.m, 1)), "affine")[:, 0]
    taken, true, since = 1 + start_up, 0, 0
    z, r = np.zeros(of.m), b
    preconditioned = inverse(r)
    p, rw = preconditioned, float(r @ preconditioned)
    while taken < terms.max_rounds:
        scale = float(np.abs(p).max())
        s = p / scale
        Hp = scale * (s - of.mean(s[:, None])[:, 0])
        step = float(p @ r) / float(p @ Hp)
        z, r, taken, since = z + step * p, r - step * Hp, taken + 1, since + 1
        if not true and error(z) <= terms.prediction_tolerance:
            true = taken
        preconditioned = inverse(r)
        before, rw = rw, float(r @ preconditioned)
        p = preconditioned + (rw / before) * p
        if met(r) or since >= VERIFY_EVERY:
            answer = b + of.mean(z[:, None])[:, 0]
            replaced, r = r, answer - z
            taken, since = taken + 1, 0
            if met(r, float(np.linalg.norm(z) + np.linalg.norm(answer))):
                break
            preconditioned = inverse(r)
            p, rw = p + preconditioned - inverse(replaced), float(r @ preconditioned)
            if not 0.5 * rw < float(p @ r) < 2.0 * rw:
                p = preconditioned
    assert true, "it ended on a certificate, and was not near"
    assert error(z) <= terms.prediction_tolerance, "a certificate that is not true"
    return {"rounds": taken, "true": true}


def middle(runs: list[dict[str, int]]) -> dict[str, int]:
    return {key: int(median(run[key] for run in runs)) for key in runs[0]}


def measured(name: str, problem: Problem, objective: Agreement, coupling: float, draws: int) -> dict:
    of = federation(problem, objective, coupling)
    weight, z = of.weight, consensus_closed_form(of.views, coupling)
    best = [v.respond(z[:, None], np.array([weight]))[:, 0] for v in of.views]
    plain = rounds(of, best, None, 0)
    taken = run_in_memory(make_schedule("conjugate-gradients", of.terms()), of.views).round
    assert taken == plain["rounds"], f"the schedule takes {taken} rounds, and the loop here {plain['rounds']}"
    kinds = {
        "probes": {k: middle([rounds(of, best, probes(of, k, seed), 1) for seed in range(draws)]) for k in COLUMNS},
        "twice": {k: middle([rounds(of, best, twice(of, k, seed), 2) for seed in range(draws)]) for k in COLUMNS[-2:]},
        "eigenvectors": {EIGENVECTORS: rounds(of, best, eigenvectors(of, EIGENVECTORS), 0)},
    }
    return {
        "data": name,
        "form": objective.form,
        "sites": len(of.views),
        "m": of.m,
        "coupling": coupling,
        "plain": plain,
        **{kind: {str(k): run for k, run in found.items()} for kind, found in kinds.items()},
    }


def main() -> None:
    options = arguments(__doc__, quick=False, write=False)
    pin_threads(1)
    rows = []
    for name, make, objective, couplings in CASES:
        problem = make()
        for coupling in couplings[: 1 if options.quick else None]:
            row = measured(name, problem, objective, coupling, 1 if options.quick else DRAWS)
            rows.append(row)
            told = ", ".join(f"{k}: {run['rounds']}" for k, run in row["probes"].items())
            again = ", ".join(f"{k}: {run['rounds']}" for k, run in row["twice"].items())
            print(
                f"{name}, {row['form']}, {row['sites']} sites, m = {row['m']}, coupling {coupling:g}: "
                f"{row['plain']['rounds']} rounds (true error {row['plain']['true']}); probes {told}; asked twice {again}; "
                f"{EIGENVECTORS} eigenvectors: {row['eigenvectors'][str(EIGENVECTORS)]['rounds']}",
                flush=True,
            )
    if options.write:
        link = {"round trip": ROUND_TRIP, "bytes/s": BANDWIDTH}
        keep(PERFORMANCE, preconditioner={"each": EACH, "draws": DRAWS, "link": link, "runs": rows})


if __name__ == "__main__":
    main()
