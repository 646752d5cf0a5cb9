"""Partial overlap: shared instances that some sites know, against dense solutions of both objectives.

The oracles use nothing of the product but kernels: one matrix for all coefficients, as docs/research/mathematics.md,
"Partial overlap", states the two problems.
"""

from itertools import permutations, product

import numpy as np
import pytest
from flint import arb, arb_mat, ctx
from hypothesis import given
from hypothesis import strategies as st

from coreg_core.agreement.objective import consensus_weight, powered
from coreg_core.agreement.objective import stays as stays_of
from coreg_core.agreement.views import PartialView, make_view
from coreg_core.alignment.overlap import Overlap
from coreg_core.computation.agreement import AgreementComputation
from coreg_core.computation.rounds import Ask
from coreg_core.errors import BadData
from coreg_core.kernels.bases import EveryPoint, LabelledPoints, Landmarks, LinearFeatures
from coreg_core.kernels.functions import Gaussian, Linear
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.plan import Agreement, Iteration

SPANS = {
    "exact": EveryPoint(),
    "semi-parametric": LabelledPoints(),
    "landmarks": Landmarks(6, 0),
    "linear": LinearFeatures(),
}
KERNEL, RIDGE, COUPLING, M, SHARED = Gaussian(4.0), 0.3, 0.2, 4, 14


def overlaps(rng: np.random.Generator, n_sites: int = M, m: int = SHARED, least: int = 2) -> list[Overlap]:
    """Each instance is known to 2 to M sites, chosen at random."""
    known = np.zeros((n_sites, m), dtype=bool)
    for i in range(m):
        known[rng.choice(n_sites, size=rng.integers(least, n_sites + 1), replace=False), i] = True
    counts = known.sum(axis=0)
    return [Overlap(np.flatnonzero(row), counts, n_sites) for row in known]


class Federation:
    """Rows of every site; the shared instances have all columns, of which a site sees two and its own known rows."""

    def __init__(self, seed: int, form: str = "exact"):
        rng = np.random.default_rng(seed)
        self.form, self.overlaps = form, overlaps(rng)
        everything = rng.normal(size=(SHARED, 2 * M))
        self.X = [rng.normal(size=(5 + v, 2)) for v in range(M)]
        self.y = [x.sum(axis=1) + rng.normal(size=len(x)) for x in self.X]
        self.Z = [everything[o.places, 2 * v : 2 * v + 2] for v, o in enumerate(self.overlaps)]
        self.views = [self.view(v, o.share) for v, o in enumerate(self.overlaps)]

    @property
    def kernel(self) -> Gaussian | Linear:
        return Linear() if self.form == "linear" else KERNEL

    def view(self, v: int, weights: Arr) -> PartialView:
        root = np.sqrt(weights)
        known = make_view(
            SPANS[self.form], self.kernel, self.X[v], self.y[v], self.Z[v], RIDGE, n_weights=2, row_scale=root
        )
        return PartialView(known, self.overlaps[v], root)

    def solve(self, coupling: float = COUPLING) -> list[Arr]:
        """Each site's coefficients over X ∪ Z, from one dense system.

        Σ_v ‖y − K_X a‖² + ν aᵀK a + 2λ Σ_i k_i Σ_{v ∈ S(i)} (f_v(z_i) − mean_i)², the sum over the pairs that know i.
        """
        K = [self.kernel(np.concatenate([x, z]), np.concatenate([x, z])) for x, z in zip(self.X, self.Z, strict=True)]
        ends = np.cumsum([0, *(len(k) for k in K)])
        A, b = np.zeros((ends[-1], ends[-1])), np.zeros(ends[-1])
        for v, k in enumerate(K):
            n, own = len(self.X[v]), slice(ends[v], ends[v + 1])
            A[own, own] += k[:, :n] @ k[:n] + RIDGE * k
            b[own] += k[:, :n] @ self.y[v]
        for i in range(SHARED):
            rows = []
            for v, o in enumerate(self.overlaps):
                if i in o.places:
                    row = np.zeros(ends[-1])
                    row[ends[v] : ends[v + 1]] = K[v][len(self.X[v]) + int(np.searchsorted(o.places, i))]
                    rows.append(row)
            for g in rows:
                for h in rows:  # ordered pairs
                    A += coupling * np.outer(g - h, g - h)
        found = np.linalg.lstsq(A, b, rcond=1e-13)[0]
        return [found[ends[v] : ends[v + 1]] for v in range(M)]

    def predictions(self, coefficients: list[Arr]) -> list[Arr]:
        return [
            self.kernel(z, np.concatenate([x, z])) @ a for x, z, a in zip(self.X, self.Z, coefficients, strict=True)
        ]

    def Q(self, models: list[Arr], locals_: list[float]) -> float:
        disagreement = 0.0
        for i in range(SHARED):
            at = [
                f[int(np.searchsorted(o.places, i))]
                for f, o in zip(models, self.overlaps, strict=True)
                if i in o.places
            ]
            disagreement += sum((f - g) ** 2 for f in at for g in at)
        return sum(locals_) + COUPLING * disagreement

    def run(self, schedule: str = "conjugate-gradients", coupling: float = COUPLING, rounds: int = 400) -> tuple:
        """The computation over sums, as a federation steps it."""
        least = self.overlaps[0].least
        terms = Agreement(form=self.form, coupling=(coupling,))
        iteration = Iteration(schedule, 1e-20, 1e-9, rounds)
        computation = AgreementComputation(terms, iteration, M, SHARED, least)
        state = computation.start()
        while computation.outcome(state) is None:
            asked = computation.round(state)
            question = asked.question
            assert isinstance(question, Ask)
            weights = np.array([c.weight for c in question.columns])
            if question.stage == "sizes":
                told = [
                    np.array(
                        [
                            powered(view.bound()),
                            float(y @ y),
                            float(len(y)),
                            *(powered(view.response_error(w)) for w in weights.tolist()),
                            *stays_of(view.bound(), weights.tolist()),
                        ]
                    )
                    for view, y in zip(self.views, self.y, strict=True)
                ]
                state = computation.step(state, asked, np.zeros((0, 0)), tuple(sum(told).tolist()))
            else:
                total = sum(view.respond(question.targets, weights, question.part) for view in self.views)
                state = computation.step(state, asked, total, ())
        return computation, state


@pytest.mark.parametrize("form", ["exact", "linear"])
@pytest.mark.parametrize("schedule", ["conjugate-gradients"])
def test_sums_end_at_the_dense_solution(form: str, schedule: str) -> None:
    """The spans of these two forms hold the optimum over X ∪ Z, so the dense oracle is theirs."""
    federation = Federation(3, form)
    truth = federation.predictions(federation.solve())
    computation, state = federation.run(schedule, rounds=3000)
    models = computation.models(state)
    assert models is not None
    weight = consensus_weight(COUPLING, M)
    for view, o, expected in zip(federation.views, federation.overlaps, truth, strict=True):
        found = view.solve(np.ascontiguousarray(models.of(0)[:, 0]), weight)
        np.testing.assert_allclose(found.prediction[o.places], expected, rtol=1e-7, atol=1e-8)
        assert not np.delete(found.prediction, o.places).any()
        np.testing.assert_allclose(
            found.predict(federation.Z[federation.views.index(view)]), expected, rtol=1e-7, atol=1e-8
        )


def test_the_exact_form_against_60_digits() -> None:
    """Kernel entries and the dense system in ball arithmetic; the answer is within its certified bound."""
    federation = Federation(7)
    with ctx.workprec(220):
        points = [np.concatenate([x, z]) for x, z in zip(federation.X, federation.Z, strict=True)]
        K = [[[entry(a, b) for b in p] for a in p] for p in points]
        ends = np.cumsum([0, *map(len, points)]).tolist()
        A, b = arb_mat(ends[-1], ends[-1]), arb_mat(ends[-1], 1)
        for v, k in enumerate(K):
            n, p = len(federation.X[v]), len(k)
            for i, j in product(range(p), range(p)):
                fit = sum((k[i][r] * k[r][j] for r in range(n)), start=arb(0))
                A[ends[v] + i, ends[v] + j] += fit + arb(RIDGE) * k[i][j]
            for i in range(p):
                b[ends[v] + i, 0] = sum((k[i][r] * arb(float(federation.y[v][r])) for r in range(n)), start=arb(0))
        rows: dict[int, list[tuple[int, int]]] = {}
        for v, o in enumerate(federation.overlaps):
            for at, place in enumerate(o.places.tolist()):
                rows.setdefault(place, []).append((v, len(federation.X[v]) + at))
        for known in rows.values():
            for (u, g), (w, h) in permutations(known, 2):
                for (s, gs, sign_s), (t, gt, sign_t) in product(((u, g, 1), (w, h, -1)), repeat=2):
                    for i, j in product(range(len(K[s])), range(len(K[t]))):
                        A[ends[s] + i, ends[t] + j] += arb(COUPLING) * sign_s * sign_t * K[s][gs][i] * K[t][gt][j]
        a = A.solve(b)
        truth = [
            np.array(
                [
                    float(sum((K[v][len(x) + r][j] * a[ends[v] + j, 0] for j in range(len(K[v]))), start=arb(0)))
                    for r in range(len(z))
                ]
            )
            for v, (x, z) in enumerate(zip(federation.X, federation.Z, strict=True))
        ]
    computation, state = federation.run()
    models, progress = computation.models(state), computation.progress(state)
    assert models is not None
    assert progress is not None
    bound = float(progress.prediction_bound[0])
    assert bound < 1e-8
    for view, o, expected in zip(federation.views, federation.overlaps, truth, strict=True):
        found = view.solve(np.ascontiguousarray(models.of(0)[:, 0]), consensus_weight(COUPLING, M))
        assert np.linalg.norm(found.prediction[o.places] - expected) <= bound


def entry(a: Arr, b: Arr) -> arb:
    square = sum(((arb(x) - arb(y)) ** 2 for x, y in zip(a.tolist(), b.tolist(), strict=True)), start=arb(0))
    return (-square / arb(KERNEL.bandwidth)).exp()


@given(st.integers(0, 10_000), st.sampled_from(sorted(SPANS)), st.sampled_from([3, 6, 12, 40]))
def test_bounds_hold_at_every_number_of_rounds(seed: int, form: str, rounds: int) -> None:
    """Gap and prediction bound of a run that ends early, against its own converged solution."""
    federation = Federation(seed, form)
    computation, state = federation.run(rounds=rounds)
    progress, models = computation.progress(state), computation.models(state)
    best, ended = federation.run(rounds=2000)
    final = best.models(ended)
    assert progress is not None
    assert models is not None
    assert final is not None
    weight = consensus_weight(COUPLING, M)
    ours, theirs = (
        [view.solve(np.ascontiguousarray(points.of(0)[:, 0]), weight) for view in federation.views]
        for points in (models, final)
    )
    off = max(np.linalg.norm(a.prediction - b.prediction) for a, b in zip(ours, theirs, strict=True))
    rest = best.progress(ended)
    assert rest is not None
    assert off <= float(progress.prediction_bound[0]) + float(rest.prediction_bound[0])
    gap = federation_gap(federation, ours) - federation_gap(federation, theirs)
    assert gap <= float(progress.gap[0]) + 1e-9 * federation_gap(federation, theirs)


def federation_gap(federation: Federation, models: list) -> float:
    at = [s.prediction[o.places] for s, o in zip(models, federation.overlaps, strict=True)]
    return federation.Q(at, [s.local_objective for s in models])


@given(st.integers(0, 10_000), st.sampled_from(sorted(SPANS)))
def test_the_sum_of_linear_parts_is_symmetric_and_below_its_bound(seed: int, form: str) -> None:
    """0 ⪯ ΣR_v ⪯ M x/(1 + x) I with the largest x, which the certificates and the check of sums use."""
    federation = Federation(seed, form)
    weight = consensus_weight(COUPLING, M)
    R = sum(view.respond(np.eye(SHARED), np.full(SHARED, weight), "linear") for view in federation.views)
    values = np.linalg.eigvalsh((R + R.T) / 2.0)
    x = weight * max(view.bound() for view in federation.views)
    np.testing.assert_allclose(R, R.T, atol=1e-9)
    assert values[0] >= -1e-9
    assert values[-1] <= M * x / (1.0 + x) + 1e-9


def test_all_sites_know_all_instances_is_the_ordinary_view() -> None:
    rng = np.random.default_rng(0)
    X, y, Z = rng.normal(size=(6, 2)), rng.normal(size=6), rng.normal(size=(9, 2))
    everything = Overlap(np.arange(9), np.full(9, M), M)
    targets, weights = rng.normal(size=(9, 2)), np.array([0.5, 2.0])
    for form, span in SPANS.items():
        kernel = Linear() if form == "linear" else KERNEL
        plain = make_view(span, kernel, X, y, Z, RIDGE, n_weights=2)
        root = np.sqrt(everything.share)
        partial = PartialView(make_view(span, kernel, X, y, Z, RIDGE, n_weights=2, row_scale=root), everything, root)
        np.testing.assert_array_equal(partial.respond(targets, weights), plain.respond(targets, weights))
        assert partial.bound() == plain.bound()
        np.testing.assert_array_equal(partial.label_map(0.5), plain.label_map(0.5))


@pytest.mark.parametrize("form", ["exact", "linear"])  # the other spans lose a basis point with the row
def test_a_label_left_out_is_predicted_as_by_a_fit_without_it(form: str) -> None:
    """At the others' mean, with the weights of the others: refitted without the row, for a fixed target."""
    federation = Federation(11, form)
    v = 1
    overlap, rng = federation.overlaps[v], np.random.default_rng(5)
    view = federation.view(v, overlap.others_share)
    target = overlap.spread(rng.normal(size=len(overlap.places)))
    r, G = view.on_labels(target, 0.7)
    errors, root, span = r / np.diag(G), np.sqrt(overlap.others_share), SPANS[form]
    for i in range(len(federation.y[v])):
        kept = np.arange(len(federation.y[v])) != i
        again = PartialView(
            make_view(
                span,
                federation.kernel,
                federation.X[v][kept],
                federation.y[v][kept],
                federation.Z[v],
                RIDGE,
                row_scale=root,
            ),
            overlap,
            root,
        )
        expected = federation.y[v][i] - again.solve(target, 0.7).predict(federation.X[v][i : i + 1])[0]
        assert errors[i] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("places", "counts", "match"),
    [
        ([0, 0], [2, 2], "ascending"),
        ([0, 2], [2, 2], "below 2"),
        ([-1], [2], "ascending"),
        ([0], [1], "2 to 3"),
        ([0], [4], "2 to 3"),
    ],
)
def test_a_false_overlap_is_refused(places: list[int], counts: list[int], match: str) -> None:
    with pytest.raises(BadData, match=match):
        Overlap(np.array(places), np.array(counts), 3)
