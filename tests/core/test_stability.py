"""The population stability index against scipy's entropies, its size by chance, and what is kept of
a training.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from coreg_core.stability import LEAST_ROWS, by_chance, shares, stability, tenths_of

seeds = st.integers(0, 10_000)


def normal(seed: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=n)


@given(seeds)
def test_the_index_is_the_sum_of_both_relative_entropies(seed: int) -> None:
    values = normal(seed, 300)
    new = 0.5 + normal(seed + 1, 200)
    edges, counts = training = shares(values, tenths_of(values))
    q, _ = np.histogram(new, [-np.inf, *np.nextafter(edges, np.inf), np.inf])
    q = np.maximum(q, 0.5)
    expected = entropy(counts, q) + entropy(q, counts)
    assert stability(training, new) == pytest.approx(expected, abs=1e-12)


def test_the_same_rows_have_not_moved() -> None:
    values = normal(0, 100)
    assert stability(shares(values, tenths_of(values)), values) == 0.0


def test_without_a_change_the_mean_index_is_that_of_chance() -> None:
    found = []
    expected = []
    for seed in range(300):
        values = normal(seed, 500)
        new = normal(10_000 + seed, 400)
        training = shares(values, tenths_of(values))
        found.append(stability(training, new))
        expected.append(by_chance(training, len(new)))
    assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.15)


@given(seeds, st.integers(1, 60))
def test_each_range_holds_enough_rows_and_no_end_is_a_value(seed: int, n: int) -> None:
    values = normal(seed, n)
    edges, counts = shares(values, tenths_of(values))
    assert sum(counts) == n
    assert len(counts) == len(edges) + 1
    assert min(counts) >= min(LEAST_ROWS, n)
    assert not np.isin(edges, values).any()


def test_two_values_are_two_ranges_and_equal_values_one() -> None:
    two = np.repeat([0.0, 1.0], [30, 70])
    assert shares(two, tenths_of(two))[1] == [30, 70]
    assert shares(np.ones(50), tenths_of(np.ones(50))) == ([], [50])
