r"""Rounds of conjugate gradients, and of Neumann-Neumann directions that need no further round trip.

    python benchmarks/neumann.py [--quick] [--write]      --write saves it in benchmarks/results/performance.json;
    --quick leaves out m = 2000

H = mean N_v, N_v = (I + μ S_v)⁻¹, and the Neumann-Neumann preconditioner of H is mean N_v⁻¹ = I + μ S̄, S̄ = mean S_v: linear,
and no label is in it. A round asks three things at once, and the next z is exact over the span of all directions so far:

    H r_k,    S̄ r_k,    H w,  w = S̄ r_{k−1}, conjugate to the directions before

Four kinds: *plain*, the product's schedule; *pipelined*, as above; *reorthogonalised*, r_k alone, made conjugate to all
directions, which needs no further question; *undelayed*, conjugate gradients with that preconditioner, its answer S̄ r_k in no
time. Rounds count the affine one, directions and verified ones. They are to the product's tolerances: by the certificate, and
by the true Q − Q* = μM (H e)ᵀ(R̄ e) and ‖R_v e‖, e = z − z* from the closed form.

Data: columns of the *generated* federation (three hidden factors), of a table of 48 *independent* columns, and of *diabetes*
(10 columns: no 16 sites; 442 rows: no m = 2000); and *same*, the same five columns at all sites, each with its own labelled rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness import PERFORMANCE, arguments, keep  # before numpy

# isort: split
import numpy as np
from preconditioner import BANDWIDTH, ROUND_TRIP, federation, of_table
from sklearn.datasets import load_diabetes

from coreg_core.agreement import closed_form
from coreg_core.agreement.objective import GOOD_END, ROUNDING, consensus_certificate, consensus_weight, typical_size
from coreg_core.agreement.schedules import make_schedule, run_in_memory
from coreg_core.agreement.schedules.conjugate_gradient import STRIKES, VERIFY_EVERY
from coreg_core.agreement.schedules.schedule import Stop, Terms, stops_of
from coreg_core.agreement.views import SpectralView
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.plan import Agreement, Iteration
from coreg_sim.federation.problems import Problem, generated

SITES, SIZES, COUPLINGS = (3, 8, 16), (300, 2000), (0.01, 0.1, 1.0, 10.0, 100.0)
FORMS, KINDS = ("exact", "semi-parametric"), ("plain", "pipelined", "reorthogonalised", "undelayed")
MOST, VECTORS, LEAST_NEW = 5000, 3, 1e-8  # rounds; of a pipelined round, each way; part of a direction that must be new


def problems(quick: bool) -> Iterator[tuple[str, Problem]]:
    X, y = load_diabetes(return_X_y=True, scaled=False)
    for M in SITES[:2]:
        yield "diabetes", of_table(X, y, [range(v, 10, M) for v in range(M)], 15, 300)
    for m in SIZES[: 1 if quick else None]:
        for M in SITES:
            yield "generated", generated(M, 50, m, 5, seed=0)
            X = np.random.default_rng(0).normal(size=(m + 50 * M, 48))
            yield "independent", of_table(X, np.sin(X).sum(axis=1), [range(v, 48, M) for v in range(M)], 50, m)
            yield "same", of_table(X, np.sin(X[:, :5]).sum(axis=1), [range(5)] * M, 50, m)


@dataclass(frozen=True)
class Mean:
    """All sites as one: a schedule that asks it takes M times the mean answer for the sum."""

    views: Sequence[Any]
    weight: float
    H: Callable[[Arr], Arr]
    smooth: Callable[[Arr], Arr]  # S̄
    b: Arr
    best: Arr

    @property
    def n_unlabelled(self) -> int:
        return len(self.b)

    def respond(self, targets: Arr, weights: Arr, part: str = "linear") -> Arr:
        return len(self.views) * (self.b[:, None] if part == "affine" else targets - self.H(targets[:, 0])[:, None])

    def met(self, z: Arr, terms: Terms) -> bool:
        """Whether the true gap and every true prediction error are within the tolerances."""
        e = z - self.best
        He = self.H(e)
        if not terms.met_by(self.weight * len(self.views) * float(He @ (e - He)), float(np.linalg.norm(e - He))):
            return False
        answers = (v.respond(e[:, None], np.array([self.weight]), "linear") for v in self.views)
        return all(np.linalg.norm(a) <= terms.prediction_tolerance for a in answers)


def mean_of(views: Sequence[Any], S: Arr, coupling: float) -> Mean:
    """``S`` is S̄ of the exact form, and [C_1 … C_M] of a finite span, with S_v = C_v C_vᵀ."""
    M, m, weight = len(views), views[0].n_unlabelled, consensus_weight(coupling, len(views))
    if isinstance(views[0], SpectralView):
        gains = np.concatenate([weight / (1.0 + weight * v.spectrum) for v in views])
        b = np.mean([v.respond(np.zeros((m, 1)), np.array([weight]))[:, 0] for v in views], axis=0)
        best = closed_form.consensus_closed_form(views, coupling)
        return Mean(views, weight, lambda z: z - S @ (gains * (S.T @ z)) / M, lambda z: S @ (S.T @ z) / M, b, best)
    total = closed_form.pairwise_sum((closed_form.information(v, weight) for v in views), closed_form.add_information)
    N = (np.tril(total[0]) + np.tril(total[0], -1).T) / M
    best = closed_form.precision_weighted_mean(total, weight)
    return Mean(views, weight, lambda z: N @ z, lambda z: S @ z, total[1] / M, best)


# --- the four kinds -----------------------------------------------------------------------------------------------


def plain(mean: Mean, terms: Terms) -> tuple[int, int | None, int, Stop | None]:
    """The product's schedule."""
    true = list[int]()

    def look(state: Any) -> None:
        if not true and mean.met(state.z[:, 0], terms):
            true.append(state.round)

    last = run_in_memory(make_schedule("conjugate-gradients", terms), [mean], look)  # type: ignore[list-item]
    return last.round, true[0] if true else None, last.round, stops_of(last.stops)[0]


def galerkin(mean: Mean, terms: Terms, kind: str) -> tuple[int, int | None, int, Stop | None]:
    """z exact over the span of all directions, which are made conjugate; verified and stopped as the schedule is."""
    bounds, smoothed, true = np.array(terms.bounds), None, None
    D = np.empty((len(mean.b), 256), order="F")
    HD, count = np.empty_like(D), 0
    z, r = np.zeros(len(mean.b)), mean.b
    taken, vectors, since, strikes, least, lowest = 1, 1, 0, 0, np.inf, np.inf

    def conjugate(w: Arr, Hw: Arr) -> tuple[Arr, Arr]:
        for _ in range(2):
            c = HD[:, :count].T @ w
            w, Hw = w - D[:, :count] @ c, Hw - HD[:, :count] @ c
        return w, Hw

    while True:
        new = [r + mean.weight * mean.smooth(r) if kind == "undelayed" else r]
        if smoothed is not None:
            new.append(conjugate(smoothed, smoothed)[0])  # its image is asked below
        new = [w / np.abs(w).max() for w in new if w.any()]
        if kind == "pipelined":
            smoothed = mean.smooth(new[0])
        for w, Hw in [(w, mean.H(w)) for w in new]:
            d, Hd = conjugate(w, Hw)
            energy = float(d @ Hd)
            if energy <= 0.0 or np.linalg.norm(d) <= LEAST_NEW * np.linalg.norm(w):
                continue
            if count == D.shape[1]:
                D, HD = (np.concatenate([A, np.empty_like(A)], axis=1) for A in (D, HD))
            D[:, count], HD[:, count], count = d / np.sqrt(energy), Hd / np.sqrt(energy), count + 1
        step = D[:, :count].T @ r
        z, r = z + D[:, :count] @ step, r - HD[:, :count] @ step
        taken, since, vectors = taken + 1, since + 1, vectors + (VECTORS if kind == "pipelined" else 1)
        if true is None and mean.met(z, terms):
            true = taken
        c = consensus_certificate(float(np.linalg.norm(r)), 0.0, mean.weight, bounds)
        if since < VERIFY_EVERY and not terms.met_by(c.gap, c.prediction_bound):
            continue
        answer = mean.b + z - mean.H(z)
        r, since, taken, vectors = answer - z, 0, taken + 1, vectors + 1
        norm, energy = float(np.linalg.norm(r)), -0.5 * float(z @ (mean.b + r))
        c = consensus_certificate(norm, float(np.linalg.norm(z) + np.linalg.norm(answer)), mean.weight, bounds)
        strikes = strikes + 1 if norm > 0.5 * least and energy + ROUNDING * abs(energy) >= lowest else 0
        least, lowest = min(norm, least), min(energy, lowest)
        code = terms.code_after(c, stuck=strikes >= STRIKES or norm == 0.0, last=taken + 2 > terms.max_rounds)
        if code:
            return taken, true, vectors, stops_of(np.array([code]))[0]


def measured(name: str, form: Any, problem: Problem) -> Iterator[str]:
    """A line for each coupling: what it is, then rounds, true error, vectors each way and stop of each kind."""
    of = federation(problem, Agreement(form=form, label_units="standardised"), 0.0)
    views: list[Any] = of.views
    if form == "exact":
        S = np.mean([v.posterior_covariance / v.ridge for v in views], axis=0)
    else:
        S = np.asfortranarray(np.hstack([v.prediction_map for v in views]))
    size = typical_size(of.squared, sum(len(data.y) for data in problem.sites.values()), of.m)
    usual, bounds = Iteration(), tuple(v.bound() for v in views)
    limits = (of.squared, usual.tolerance, usual.prediction_tolerance * size, MOST)
    for coupling in COUPLINGS:
        mean, terms = mean_of(views, S, coupling), Terms((coupling,), bounds, *limits, rounding_limit=GOOD_END * size)
        cells: list[Any] = [name, form, len(views), of.m, f"{coupling:g}"]
        for kind in KINDS:
            run = plain(mean, terms) if kind == "plain" else galerkin(mean, terms, kind)
            assert run[1] is not None, "it ended on a certificate, and was not near"
            cells += [*run[:3], run[3].name]
        yield " ".join(map(str, cells))


def main() -> None:
    options, rows = arguments(__doc__, quick=False, write=False), []
    pin_threads(1)
    for name, problem in problems(options.quick):
        for form in FORMS:
            for line in measured(name, form, problem):
                print(line, flush=True)
                rows.append(line)
    link = {"round trip": ROUND_TRIP, "bytes/s": BANDWIDTH}
    if options.write:
        keep(PERFORMANCE, neumann={"link": link, "kinds": KINDS, "runs": rows})


if __name__ == "__main__":
    main()
