"""Fixed point, exact sums, masks that cancel and tags that add: the pure half of sealed sums."""

from dataclasses import dataclass
from fractions import Fraction
from math import fsum

import numpy as np
import pytest
from cryptography.hazmat.primitives.poly1305 import Poly1305
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

import coreg_core.secure.sums as fp
from coreg_core.errors import BadData
from coreg_core.secure.sums import Layout, is_sum, message, opened, summand, tag_words
from coreg_core.shapes import TAG_WORDS

SIZES = st.floats(1e-200, 1e200)


def random_words(rng, n):
    return rng.integers(0, 2**64, size=n, dtype="<u8")


def masked(rows, seed):
    """Each site's words under masks that add up to nothing."""
    rng = default_rng(seed)
    n = len(rows[0])
    masks = [random_words(rng, n) for _ in rows[1:]]
    masks.append(-total(masks, n))
    return [row + mask for row, mask in zip(rows, masks, strict=True)]


def total(rows, n):
    return sum(rows, np.zeros(n, dtype="<u8"))


def exponent_for(bound, n_sites):
    [exponent] = fp.exponents_for(np.array([bound]), n_sites)
    return exponent


@given(st.integers(1, 10_000), SIZES)
def test_the_scale_leaves_room_for_every_sum_and_no_more_than_it_needs(n_sites, bound):
    scale = Fraction(2) ** exponent_for(bound, n_sites)
    largest_sum = n_sites * Fraction(bound) * scale
    assert largest_sum <= 2**62
    assert 8 * largest_sum > 2**62


@given(st.integers(1, 10_000), SIZES)
def test_half_a_step_is_at_most_m_parts_of_two_to_the_61_of_the_bound(n_sites, bound):
    half_a_step = 2.0 ** -(exponent_for(bound, n_sites) + 1)
    assert half_a_step <= bound * n_sites * 2.0**-61


@dataclass
class Summed:
    """Numbers and scalars of some sites, and their words."""

    layout: Layout
    exponents: list
    numbers: list
    scalars: list
    words: list
    bound: float

    def opened(self, rows):
        return opened(self.layout, total(rows, self.layout.size), self.exponents)


def drawn_scalars(rng):
    magnitudes = 10.0 ** rng.integers(-300, 300, size=2)
    return tuple((rng.normal(size=2) * magnitudes).tolist())


SIZES_OF_SUMS = st.tuples(
    st.integers(1, 9), st.integers(1, 8), st.integers(1, 3), st.floats(1e-12, 1e12)
)
seeds = st.integers(0, 2**32)


def summed(sizes, seed):
    n_sites, m, k, bound = sizes
    rng = default_rng(seed)
    layout = Layout(m, k, 2)
    exponents = [exponent_for(bound, n_sites)] * k
    numbers = []
    scalars = []
    words = []
    for _ in range(n_sites):
        numbers.append(rng.uniform(-bound, bound, size=(m, k)))
        scalars.append(drawn_scalars(rng))
        words.append(summand(layout, numbers[-1], scalars[-1], exponents, n_sites))
    return Summed(layout, exponents, numbers, scalars, words, bound)


@given(SIZES_OF_SUMS, seeds)
def test_masks_change_no_bit(sizes, seed):
    given_sums = summed(sizes, seed)
    values, sums = given_sums.opened(masked(given_sums.words, seed))
    plain, plain_sums = given_sums.opened(given_sums.words[::-1])
    assert values.tobytes() == plain.tobytes()
    assert sums == plain_sums


@given(SIZES_OF_SUMS, seeds)
def test_masked_words_of_several_sites_are_none_of_the_plain_ones(sizes, seed):
    given_sums = summed(sizes, seed)
    plain = given_sums.words
    if len(plain) > 1:
        for row, sealed in zip(plain, masked(plain, seed), strict=True):
            assert not np.array_equal(row, sealed)


@given(SIZES_OF_SUMS, seeds)
def test_scalars_are_summed_exactly(sizes, seed):
    given_sums = summed(sizes, seed)
    _, sums = given_sums.opened(given_sums.words)
    assert sums == tuple(fsum(column) for column in zip(*given_sums.scalars, strict=True))


@given(SIZES_OF_SUMS, seeds)
def test_the_sum_is_that_of_the_rounded_numbers(sizes, seed):
    given_sums = summed(sizes, seed)
    values, _ = given_sums.opened(given_sums.words)
    n_sites = len(given_sums.words)
    m = len(values)
    errors = (values - np.sum(given_sums.numbers, axis=0)) / n_sites
    half_a_step = 2.0 ** -(given_sums.exponents[0] + 1)
    rounding = 4e-16 * given_sums.bound * n_sites
    lengths = np.linalg.norm(errors, axis=0)
    assert (lengths <= np.sqrt(m) * (half_a_step + rounding)).all()


def nearest_float(exact):
    try:
        return float(exact)
    except OverflowError:
        if exact > 0:
            return float("inf")
        return float("-inf")


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_scalars_add_up_exactly_in_any_order_however_far_they_are_apart(numbers):
    layout = Layout(0, 0, 1)
    nothing = np.zeros((0, 0))
    rows = [summand(layout, nothing, (x,), (), len(numbers)) for x in numbers]
    _, sums = opened(layout, total(rows[::-1], layout.size), ())
    exact = sum(map(Fraction, numbers))
    assert sums == (nearest_float(exact),)


# --- tags -----------------------------------------------------------------------------------------


def tag_of(words, r):
    return Poly1305.generate_tag(r + bytes(16), message(words).tobytes())


def tagged(n_sites, n_words, seed):
    """(words of each site, the sum of their tags, r).

    The words are numbers whose sum is none of 2⁶³, as encodings are.
    """
    rng = default_rng(seed)
    most = (2**63 - 1) // n_sites
    rows = []
    for _ in range(n_sites):
        numbers = rng.integers(-most, most, size=n_words, endpoint=True)
        rows.append(numbers.view("<u8"))
    r = rng.bytes(16)
    return rows, sum_of_tags(rows, r), r


def sum_of_tags(rows, r):
    tags = [tag_words(tag_of(row, r)) for row in rows]
    return total(tags, TAG_WORDS)


# None, one, and the largest once it is clamped.
ROOTS = [bytes(16), (1).to_bytes(16, "little"), b"\xff" * 16]


@given(st.integers(1, 64), st.integers(1, 33), st.integers(0, 2**32))
def test_the_tag_of_an_honest_sum_is_accepted(n_sites, n_words, seed):
    rows, tags, r = tagged(n_sites, n_words, seed)
    tag = tag_of(total(rows, n_words), r)
    assert is_sum(tag, tags, r, n_words, n_sites)


@pytest.mark.parametrize("root", ROOTS)
@given(st.integers(1, 64), st.integers(1, 33), st.integers(0, 2**32))
def test_the_tag_of_an_honest_sum_is_accepted_at_any_root(root, n_sites, n_words, seed):
    rows, _, _ = tagged(n_sites, n_words, seed)
    tag = tag_of(total(rows, n_words), root)
    assert is_sum(tag, sum_of_tags(rows, root), root, n_words, n_sites)


ONE = np.uint64(1)


def one_bit(words, rows):
    words[-1] ^= ONE


def the_highest_bit(words, rows):
    words[0] ^= np.uint64(1 << 63)


def moved_from_one_word_to_the_next(words, rows):
    words[0] += ONE
    words[1] -= ONE


def two_words_exchanged(words, rows):
    words[:2] = words[1::-1].copy()


def nothing(words, rows):
    words[:] = 0


def a_site_left_out(words, rows):
    words -= rows[0]


def a_site_twice(words, rows):
    words += rows[0]


FORGERIES = [
    one_bit,
    the_highest_bit,
    moved_from_one_word_to_the_next,
    two_words_exchanged,
    nothing,
    a_site_left_out,
    a_site_twice,
]


@pytest.mark.parametrize("forge", FORGERIES)
@given(st.integers(2, 9), st.integers(3, 33), st.integers(0, 2**32))
def test_a_forged_sum_is_refused(forge, n_sites, n_words, seed):
    rows, tags, r = tagged(n_sites, n_words, seed)
    words = total(rows, n_words)
    forged = words.copy()
    forge(forged, rows)
    assert not np.array_equal(forged, words)
    assert not is_sum(tag_of(forged, r), tags, r, n_words, n_sites)


SUMS = given(st.integers(2, 9), st.integers(1, 33), st.integers(0, 2**32))


@SUMS
def test_a_sum_is_refused_under_other_tags(n_sites, n_words, seed):
    rows, tags, r = tagged(n_sites, n_words, seed)
    tag = tag_of(total(rows, n_words), r)
    tags[0] += ONE
    assert not is_sum(tag, tags, r, n_words, n_sites)


@SUMS
def test_a_sum_is_refused_as_one_of_fewer_sites(n_sites, n_words, seed):
    rows, tags, r = tagged(n_sites, n_words, seed)
    tag = tag_of(total(rows, n_words), r)
    assert not is_sum(tag, tags, r, n_words, n_sites - 1)


@SUMS
def test_a_sum_is_refused_under_another_root(n_sites, n_words, seed):
    rows, tags, r = tagged(n_sites, n_words, seed)
    other = bytes([r[0] ^ 1]) + r[1:]
    tag = tag_of(total(rows, n_words), other)
    assert not is_sum(tag, tags, other, n_words, n_sites)


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 2.0**23])
def test_what_would_wrap_is_refused_and_its_size_not_disclosed(value):
    exponents = [exponent_for(2.0**20, 4)]
    values = np.array([[0.5], [value]])
    with pytest.raises(BadData) as refused:
        fp.encode(values, exponents, 4, np.zeros(2, dtype="<u8"))
    assert not any(character.isdigit() for character in str(refused.value))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_scalar_that_is_not_finite_is_refused(value):
    with pytest.raises(BadData, match="not finite"):
        summand(Layout(0, 0, 1), np.zeros((0, 0)), (value,), (), 2)


@pytest.mark.parametrize(("shape", "scalars"), [((3, 2), ()), ((2, 2), (1.0,)), ((2, 2), ())])
def test_an_answer_of_another_length_is_refused(shape, scalars):
    with pytest.raises(BadData, match="is summed"):
        summand(Layout(3, 2, 1), np.zeros(shape), scalars, (0, 0), 2)
