"""`rademacher`: the decrease is Theorem 3's and knows no target; the consistent reading is `corlsr-uci`'s problem."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from coreg_core.errors import UsageError
from coreg_core.kernels.functions import Gaussian, paper_bandwidth, paper_ridge
from coreg_sim.papers import corlsr_uci, rademacher
from coreg_sim.papers.experiment import Job
from coreg_sim.papers.pool import DataSet, Pool
from coreg_sim.papers.rademacher import EXPERIMENT, READINGS
from tests.sim.stand_in import stand_in

LABELLED, REST = np.arange(12), np.arange(12, 60)
COLUMNS = [np.array([0, 2]), np.array([1, 3])]


def data_set():
    rng = np.random.default_rng(0)
    X = rng.normal(3.0, size=(60, 4))
    y = X[:, 0] * X[:, 1] + 0.1 * rng.normal(size=60) + 5
    return DataSet("toy", X, y, tuple("abcd"), ((0,), (1,), (2,), (3,)), "regression")


@pytest.mark.parametrize("reading", READINGS)
def test_the_bounds_are_theorem_3_as_printed(reading):
    data = data_set()
    *_, before, after = rademacher._fold(data, COLUMNS, LABELLED, REST, reading)
    (XF, ZF), (XG, ZG) = ((data.X[LABELLED][:, c], data.X[REST][:, c]) for c in COLUMNS)
    kF, kG = Gaussian(paper_bandwidth(XF)), Gaussian(paper_bandwidth(XG))
    share = 1.0 if reading == "literal" else 1 / 24  # 1/(2ℓ)
    gF, gG = paper_ridge(XF) * share, paper_ridge(XG) * share
    lam = 0.1 if reading == "literal" else 0.1 / 12
    J, M = kF(ZF, XF) / gF - kG(ZG, XG) / gG, kF(ZF, ZF) / gF + kG(ZG, ZG) / gG
    plain = 12 / gF + 12 / gG  # k(x, x) = 1
    U = np.sqrt([plain, plain - lam * np.trace(J.T @ np.linalg.inv(np.eye(48) + lam * M) @ J)])
    assert_allclose([before, after], U / 12, rtol=1e-10)


@pytest.mark.parametrize("reading", READINGS)
def test_no_target_moves_the_complexity_and_no_held_out_one_the_predictors(reading):
    data = data_set()
    other = replace(data, y=data.y[::-1].copy())
    ours, theirs = (rademacher._fold(d, COLUMNS, LABELLED, REST, reading) for d in (data, other))
    assert_array_equal(ours[2:], theirs[2:])
    assert ours[0] != theirs[0]
    # A shift c of the held-out targets is Σ(p − y − c)²/n: quadratic in c with the predictor p fixed.
    shifted = [
        np.array(
            rademacher._fold(replace(data, y=data.y + c * (np.arange(60) >= 12)), COLUMNS, LABELLED, REST, reading)
        )
        for c in (-1.0, 0.0, 1.0)
    ]
    squares = [s[:2] ** 2 for s in shifted]
    assert_allclose(squares[0] + squares[2] - 2 * squares[1], [2.0, 2.0], rtol=1e-9)


def test_the_consistent_reading_is_the_2006_paper_s_problem():
    data = data_set()
    without, coupled, *_ = rademacher._fold(data, COLUMNS, LABELLED, REST, "consistent")
    theirs = corlsr_uci._predictions(data, "literal", COLUMNS, LABELLED, REST)
    errors = {method: np.sqrt(np.mean((p - data.y[REST]) ** 2)) for method, p in theirs.items()}
    assert_allclose([without, coupled], [errors["average"], errors["exact"]], rtol=1e-7)


@pytest.mark.parametrize("reading", READINGS)
def test_one_labelled_row_and_rows_that_do_not_differ_are_no_error(reading):
    data = data_set()
    same = replace(data, X=np.vstack([np.ones((12, 4)), data.X[12:]]))
    for labelled in (LABELLED, LABELLED[:1]):
        assert np.isfinite(rademacher._fold(same, COLUMNS, labelled, REST, reading)).all()
    assert np.isfinite(rademacher._practitioner(same, LABELLED[:1], REST))


def test_the_report_correlates_what_the_sets_gave():
    # By hand: U falls by 10, 20, 40 and 50 %, the error by 1, 2, 4 and 5 %: r = 1; by 4, 2, 1, 1: as numpy has it.
    shares = np.array([0.1, 0.2, 0.4, 0.5])
    rising, falling = shares / 10, np.array([0.04, 0.02, 0.01, 0.01])
    results = {
        name: {
            "literal": [[10.0, 10 * (1 - rising[i]), 2.0, 2 * (1 - shares[i])]] * 2,
            "consistent": [[10.0, 10 * (1 - falling[i]), 2.0, 2 * (1 - shares[i])]] * 2,
            "kernel ridge": [3.0],
        }
        for i, name in enumerate(("bolts", "cpu", "sleep", "pbc"))
    }
    report = EXPERIMENT.report(results, quick=True)
    assert report.figures["r, literal, share"] == pytest.approx(1.0)
    assert report.figures["r, consistent, share"] == pytest.approx(np.corrcoef(shares, falling)[0, 1])
    figure = {plot.name: plot.series[0] for plot in report.plots}["rademacher-consistent"]
    assert_allclose(figure.x, [10, 20, 40, 50])
    assert_allclose(figure.y, [4, 2, 1, 1])


def test_three_sets_are_too_few_for_a_correlation():
    one = {reading: [[10.0, 9.0, 2.0, 1.5]] * 2 for reading in ("literal", "consistent")} | {"kernel ridge": [3.0]}
    with pytest.raises(UsageError, match="3 sets"):
        EXPERIMENT.report(dict.fromkeys(("bolts", "cpu", "sleep"), one), quick=True)


def test_a_job_is_the_same_twice_and_every_split_is_its_own(tmp_path):
    pool = Pool(stand_in(tmp_path / "sets", ["bolts"], rows=30))
    job = Job("bolts", {"set": "bolts", "splits": 2})
    once, again = EXPERIMENT.run(job, pool), EXPERIMENT.run(job, pool)
    assert once == again
    assert once["literal"][0] != once["literal"][1]
