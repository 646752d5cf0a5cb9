"""Partial overlap under the additive objective: the smoother's least squares, and a whole training by sums."""

from dataclasses import replace

import numpy as np
import pytest
from additive_problems import TIGHT, federation, oracle, train, truth
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from coreg_core.additive.model.features import candidates
from coreg_core.additive.model.smoother import choose_smoother
from coreg_core.additive.site import AdditiveSite
from coreg_core.alignment.overlap import Overlap
from coreg_core.numerics.arrays import Arr

M = 4
seeds = st.integers(0, 10_000)


def knowledge(rng: np.random.Generator, m: int, share: float, sites: int = M) -> np.ndarray:
    known = rng.random((sites, m)) < share
    for i in np.flatnonzero(known.sum(axis=0) < 2):
        known[rng.choice(sites, 2, replace=False), i] = True
    return known


def overlaps_of(known: np.ndarray) -> list[Overlap]:
    counts = known.sum(axis=0)
    return [Overlap(np.flatnonzero(row), counts, len(known)) for row in known]


def shared_features(rng: np.random.Generator, overlap: Overlap):
    """The only candidate of a site, spread over all instances."""
    X, Z = rng.normal(size=(5, 2)), rng.normal(size=(len(overlap.places), 2))
    [made] = candidates(X, Z, landmarks=7, bandwidth=4.0)
    weights = overlap.spread(overlap.others_share)
    return replace(made, shared=overlap.spread(made.shared), weights=weights)


@given(seeds)
def test_the_smoother_is_least_squares_over_pairs_of_an_instance_and_another_site(seed: int) -> None:
    """min_u Σ_i Σ_{u ≠ v knows i} ((M−1) h_u(z_i) − φ(z_i)·u)² + (M−1) η‖u‖²: a copy of a row for each other site."""
    rng = np.random.default_rng(seed)
    known = knowledge(rng, 30, 0.6)
    own = overlaps_of(known)[0]
    made = shared_features(rng, own)
    parts = rng.normal(size=(M - 1, 30)) * known[1:]
    chosen = choose_smoother([made], (parts * known[0]).sum(axis=0), np.array([0.7]))
    found = chosen.coefficients(made, parts.sum(axis=0))
    rows, targets = [], []
    for i in own.places:
        for u in np.flatnonzero(known[1:, i]):
            rows.append(made.shared[i])
            targets.append((M - 1) * parts[u, i])
    A, b = np.array(rows), np.array(targets)
    direct = np.linalg.solve(A.T @ A + (M - 1) * 0.7 * np.eye(A.shape[1]), A.T @ b)
    assert_allclose(found, direct, rtol=1e-9, atol=1e-11)


@given(seeds)
def test_leave_one_out_of_the_smoother_is_that_of_refits(seed: int) -> None:
    """In units of √w, with the mean and the centring of all rows."""
    rng = np.random.default_rng(seed)
    known = knowledge(rng, 25, 0.7)
    own = overlaps_of(known)[0]
    made = shared_features(rng, own)
    score = rng.normal(size=25)  # the others' score is not zero where this site knows nothing
    etas = np.array([0.3, 30.0])
    chosen = choose_smoother([made], score, etas)
    w, root = made.weights, np.sqrt(made.weights)
    mean = score[w > 0].sum() / w.sum()
    t = np.divide(score - w * mean, root, out=np.zeros(25), where=root > 0)
    A = root[:, None] * made.shared
    losses = []
    for eta in etas:
        H = A @ np.linalg.solve(A.T @ A + eta * np.eye(A.shape[1]), A.T) + np.diag(w / w.sum())
        fitted = A @ np.linalg.solve(A.T @ A + eta * np.eye(A.shape[1]), A.T @ t)
        losses.append(float(np.sum(((t - fitted) / (1.0 - np.diag(H))) ** 2)))
    assert chosen.eta == etas[int(np.argmin(losses))]
    assert chosen.r2 == pytest.approx(1.0 - min(losses) / float(t @ t), rel=1e-7, abs=1e-9)


def test_parts_that_some_sites_do_not_know_are_neither_shrunk_nor_stretched() -> None:
    """Equal parts of three other sites, each known at half of the rows: the score of all three is recovered."""
    rng = np.random.default_rng(0)
    known = knowledge(rng, 4000, 0.5)
    own = overlaps_of(known)[0]
    Z = rng.normal(size=(len(own.places), 1))
    [made] = candidates(np.zeros((1, 1)), Z, kernel="linear")
    made = replace(made, shared=own.spread(made.shared), weights=own.spread(own.others_share))
    part = own.spread(Z)[:, 0]
    others = known[1:].sum(axis=0) * part
    slope = choose_smoother([made], others, np.array([1e-2])).coefficients(made, others)
    assert slope[0] == pytest.approx(M - 1, rel=0.02), "the sum of three parts, although half of each is missing"


@given(seeds, st.floats(-100.0, 100.0))
def test_a_level_of_the_others_scores_changes_no_choice(seed: int, level: float) -> None:
    rng = np.random.default_rng(seed)
    known = knowledge(rng, 40, 0.6)
    made = shared_features(rng, overlaps_of(known)[0])
    scores = rng.normal(size=(M - 1, 40)) * known[1:]
    plain, moved = (choose_smoother([made], (scores + shift * known[1:]).sum(axis=0)) for shift in (0.0, level))
    assert plain.eta == moved.eta
    assert plain.r2 == pytest.approx(moved.r2, abs=1e-6 * (1 + abs(level)))


def test_a_site_that_knows_no_shared_instance_trains_alone() -> None:
    rng = np.random.default_rng(0)
    X, y, Z = rng.normal(size=(9, 2)), rng.normal(size=9), rng.normal(size=(20, 2))
    counts = np.full(20, 2)
    some = [Overlap(np.arange(20), counts, 3), Overlap(np.arange(20), counts, 3), Overlap(np.arange(0), counts, 3)]
    sites = [AdditiveSite(X + v, y + v, Z[: len(o.places)], TIGHT, name=f"s{v}", overlap=o) for v, o in enumerate(some)]
    made = replace(federation(TIGHT), sites=sites, n_unlabelled=20)
    _, state = train(made, TIGHT)
    assert np.isfinite(state.x).all()
    assert np.isfinite(sites[2].model.own.predict(X)).all()


def partial(share: float, rows: str = "private", seed: int = 3) -> tuple[list[AdditiveSite], np.ndarray]:
    """Three sites; common rows are known to all of them."""
    terms = replace(TIGHT, rows=rows)
    rng, m = np.random.default_rng(seed), 60
    A = rng.normal(size=(m + 40, 6))
    known = knowledge(rng, m, share, 3)
    known[:, :24] |= rows == "common"
    sites = []
    for v, overlap in enumerate(overlaps_of(known)):
        own = np.arange(8 * v, 8 * v + 8) if rows == "common" else m + np.arange(10 * v, 10 * v + 10)
        columns = slice(2 * v, 2 * v + 2)
        sites.append(
            AdditiveSite(
                A[own, columns], 3.0 + truth(A[own]), A[overlap.places, columns], terms, name=f"s{v}",
                positions=own if rows == "common" else None, overlap=overlap,
            )
        )  # fmt: skip
    return sites, known


@pytest.mark.parametrize("rows", ["private", "common"])
def test_a_training_by_sums_ends_at_the_dense_solution(rows: str) -> None:
    sites, known = partial(0.6, rows)
    terms = replace(TIGHT, rows=rows)
    made = replace(federation(TIGHT), sites=sites, n_unlabelled=known.shape[1])
    training, state = train(made, terms)
    s, a, _ = oracle(made, terms, state)
    assert_allclose(state.x[: len(s), 0], s, atol=1e-8)
    assert state.x[-1, 0] == pytest.approx(a, abs=1e-8)
    assert training.certificate(state).score_bound < 1e-3
    for site, row in zip(sites, known, strict=True):
        assert not site.view.shared[~row].any(), "a part is zero where the site knows nothing"


def test_all_instances_known_are_the_same_bits() -> None:
    rng = np.random.default_rng(1)
    X, y, Z = rng.normal(size=(9, 2)), rng.normal(size=9), rng.normal(size=(30, 2))
    whole = Overlap(np.arange(30), np.full(30, 3), 3)
    score = rng.normal(size=30)
    one, other = (AdditiveSite(X, y, Z, TIGHT, overlap=o) for o in (None, whole))

    def features(site: AdditiveSite) -> list[Arr]:
        chosen = choose_smoother(site.candidates, score)
        return [site.candidates[0].shared, chosen.filter, np.array([chosen.eta, chosen.r2])]

    for mine, theirs in zip(features(one), features(other), strict=True):
        assert_allclose(mine, theirs, rtol=1e-12)
