"""Fixed point, exact sums and masks that cancel: the pure half of secure aggregation."""

from fractions import Fraction
from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreg_core.errors import BadData
from coreg_core.masking import fixed_point as fp
from coreg_core.masking.sums import CHECK_WORDS, SCALAR_WORDS, add_mask, opened, summand, total

SIZES = st.floats(1e-200, 1e200)


def streams(seed):
    """A pair's stream: the same words for both."""
    rng = np.random.default_rng(seed)

    def fill(words):
        words[:] = rng.integers(0, 2**64, size=len(words), dtype=np.uint64)

    return fill


def masked(numbers, scalars, exponents, seed=0):
    """Each site's words, masked in pairs."""
    sites = [summand(x, s, exponents, len(numbers)) for x, s in zip(numbers, scalars, strict=True)]
    for v in range(len(sites)):
        for u in range(len(sites)):
            if u != v:
                add_mask(*sites[v], streams([seed, min(u, v), max(u, v)]), negative=u < v)
    return sites[0][0], [words for _, words in sites]


@given(st.integers(1, 10_000), SIZES)
def test_the_scale_leaves_room_for_every_sum_and_no_more_than_it_needs(n_sites, bound):
    e = fp.exponent_for(bound, n_sites)
    assert n_sites * Fraction(bound) * Fraction(2) ** e <= 2**62
    assert 4 * n_sites * Fraction(bound) * Fraction(2) ** (e + 1) > 2**62
    assert not fp.wraps(bound, e, n_sites)
    assert fp.wraps(bound, e + 3, n_sites)
    assert fp.step_error(7, bound, n_sites) <= bound * fp.relative_step(7, n_sites)


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 8), st.integers(1, 3), st.floats(1e-12, 1e12), st.integers(0, 2**32))
def test_masks_change_no_bit_and_the_sum_is_that_of_the_rounded_numbers(n_sites, m, k, bound, seed):
    rng = np.random.default_rng(seed)
    numbers = [rng.uniform(-bound, bound, size=(m, k)) for _ in range(n_sites)]
    scalars = [tuple((rng.normal(size=2) * 10.0 ** rng.integers(-300, 300, size=2)).tolist()) for _ in range(n_sites)]
    exponents = [fp.exponent_for(bound, n_sites)] * k
    layout, words = masked(numbers, scalars, exponents, seed)
    plain = [summand(x, s, exponents, n_sites)[1] for x, s in zip(numbers, scalars, strict=True)]
    values, sums = opened(layout, total(layout, words), exponents)
    again, clear = opened(layout, total(layout, plain[::-1]), exponents)
    assert values.tobytes() == again.tobytes()
    assert sums == clear == tuple(fsum(s[j] for s in scalars) for j in range(2))
    error = np.linalg.norm((values - np.sum(numbers, axis=0)) / n_sites, axis=0)
    assert (error <= fp.step_error(m, bound, n_sites) + 4e-16 * bound * n_sites * np.sqrt(m)).all()
    if n_sites > 1:
        assert not any(np.array_equal(a, b) for a, b in zip(words, plain, strict=True))


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_a_scalar_is_carried_whole(x, y):
    layout, a = summand(np.zeros((0, 0)), (x,), (), 2)
    _, b = summand(np.zeros((0, 0)), (y,), (), 2)
    exact = Fraction(x) + Fraction(y)
    try:
        expected = float(exact)
    except OverflowError:
        expected = float("inf") if exact > 0 else float("-inf")
    assert opened(layout, total(layout, [a, b]), ())[1] == (expected,)


@pytest.mark.parametrize("wrong", [0, 3, -1])
def test_masks_that_do_not_cancel_are_a_refusal(wrong):
    """A flipped bit of any pair's stream, and a sum without one of the sites."""
    numbers, scalars = [np.ones((3, 2))] * 3, [(1.0,)] * 3
    layout, words = masked(numbers, scalars, [40, 40])
    assert opened(layout, total(layout, words), [40, 40])[1] == (3.0,)
    with pytest.raises(BadData, match="do not cancel"):
        opened(layout, total(layout, words[:2]), [40, 40])
    add_mask(layout, words[0], streams([9]), negative=wrong < 0)
    with pytest.raises(BadData, match="do not cancel"):
        opened(layout, total(layout, words), [40, 40])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 2.0**23])
def test_what_would_wrap_is_refused_and_its_size_not_told(value):
    values = np.array([[0.5], [value]])
    with pytest.raises(BadData) as refused:
        fp.encode(values, [fp.exponent_for(2.0**20, 4)], 4)
    assert not any(c.isdigit() for c in str(refused.value))
    with pytest.raises(BadData):
        summand(np.zeros((0, 0)), (np.nan,), (), 2)


def test_a_masked_word_is_uniform_whatever_it_hides():
    """One site's words under a uniform mask: counts of every byte, for zeros as for numbers at the bound."""
    for value in (0.0, 1.0):
        layout, words = summand(np.full((4096, 4), value), (value,), [50] * 4, 2)
        add_mask(layout, words, streams([7, int(value)]), negative=False)
        counts = np.bincount(words.view(np.uint8), minlength=256)
        expected = layout.size * 8 / 256
        chi2 = float(np.sum((counts - expected) ** 2) / expected)
        assert abs(chi2 - 255) < 6 * np.sqrt(2 * 255)
    assert layout.size == 4096 * 4 + SCALAR_WORDS + CHECK_WORDS


def test_zero_bounds_and_empty_answers():
    assert fp.exponent_for(0.0, 3) == fp.MOST_EXPONENT
    layout, words = summand(np.zeros((0, 0)), (), (), 5)
    assert opened(layout, total(layout, [words] * 5), ())[0].shape == (0, 0)
    assert fp.on_the_grid(np.full((2, 1), 0.3), [4], 3).tolist() == [[0.3125], [0.3125]]
