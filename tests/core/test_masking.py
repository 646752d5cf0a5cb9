"""Fixed point, exact sums, masks that cancel and tags that add: the pure half of sealed sums."""

from fractions import Fraction
from math import fsum

import numpy as np
import pytest
from cryptography.hazmat.primitives.poly1305 import Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st

import coreg_core.secure.sums as fp
from coreg_core.errors import BadData
from coreg_core.secure.sums import Layout, is_sum, message, opened, summand, tag_words
from coreg_core.shapes import TAG_WORDS

SIZES = st.floats(1e-200, 1e200)


def random_words(rng, n):
    return rng.integers(0, 2**64, size=n, dtype="<u8")


def masked(rows, seed):
    """Each site's words under masks that add up to nothing."""
    rng = np.random.default_rng(seed)
    masks = [random_words(rng, len(rows[0])) for _ in rows[1:]]
    return [
        row + mask for row, mask in zip(rows, [*masks, -total(masks, len(rows[0]))], strict=True)
    ]


def total(rows, n):
    return sum(rows, np.zeros(n, dtype="<u8"))


@given(st.integers(1, 10_000), SIZES)
def test_the_scale_leaves_room_for_every_sum_and_no_more_than_it_needs(n_sites, bound):
    e = fp.exponents_for(np.array([bound]), n_sites)[0]
    assert n_sites * Fraction(bound) * Fraction(2) ** e <= 2**62
    assert 4 * n_sites * Fraction(bound) * Fraction(2) ** (e + 1) > 2**62
    # √m numbers, each half a step off at most: √m · M · 2⁻⁶¹ of the bound.
    assert np.sqrt(7) * 2.0 ** -(e + 1) <= bound * np.sqrt(7) * n_sites * 2.0**-61


@settings(deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 8),
    st.integers(1, 3),
    st.floats(1e-12, 1e12),
    st.integers(0, 2**32),
)
def test_masks_change_no_bit_and_the_sum_is_that_of_the_rounded_numbers(n_sites, m, k, bound, seed):
    rng = np.random.default_rng(seed)
    numbers = [rng.uniform(-bound, bound, size=(m, k)) for _ in range(n_sites)]
    scalars = [
        tuple((rng.normal(size=2) * 10.0 ** rng.integers(-300, 300, size=2)).tolist())
        for _ in range(n_sites)
    ]
    exponents = [fp.exponents_for(np.array([bound]), n_sites)[0]] * k
    layout = Layout(m, k, 2)
    plain = [
        summand(layout, x, s, exponents, n_sites) for x, s in zip(numbers, scalars, strict=True)
    ]
    sealed = masked(plain, seed)
    values, sums = opened(layout, total(sealed, layout.size), exponents)
    again, clear = opened(layout, total(plain[::-1], layout.size), exponents)
    assert values.tobytes() == again.tobytes()
    assert sums == clear == tuple(fsum(s[j] for s in scalars) for j in range(2))
    error = np.linalg.norm((values - np.sum(numbers, axis=0)) / n_sites, axis=0)
    step = 2.0 ** -(fp.exponents_for(np.array([bound]), n_sites)[0] + 1)
    assert (error <= np.sqrt(m) * (step + 4e-16 * bound * n_sites)).all()
    if n_sites > 1:
        assert not any(np.array_equal(a, b) for a, b in zip(sealed, plain, strict=True))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_scalars_add_up_exactly_in_any_order_however_far_they_are_apart(numbers):
    layout = Layout(0, 0, 1)
    rows = [summand(layout, np.zeros((0, 0)), (x,), (), len(numbers)) for x in numbers]
    exact = sum(map(Fraction, numbers))
    try:
        expected = float(exact)
    except OverflowError:
        expected = float("inf") if exact > 0 else float("-inf")
    assert opened(layout, total(rows[::-1], layout.size), ())[1] == (expected,)


# --- tags -----------------------------------------------------------------------------------------


def tag_of(words, r):
    return Poly1305.generate_tag(r + bytes(16), message(words).tobytes())


def tagged(n_sites, n_words, seed):
    """(words of each site, the sum of their tags, r).

    The words are numbers whose sum is none of 2⁶³, as encodings are.
    """
    rng = np.random.default_rng(seed)
    most = (2**63 - 1) // n_sites
    rows = [
        rng.integers(-most, most, size=n_words, endpoint=True).view("<u8") for _ in range(n_sites)
    ]
    r = rng.bytes(16)
    return rows, total([tag_words(tag_of(row, r)) for row in rows], TAG_WORDS), r


ROOTS = [
    bytes(16),
    (1).to_bytes(16, "little"),
    b"\xff" * 16,
]  # none, one, and the largest once it is clamped


@given(
    st.integers(1, 64), st.integers(1, 33), st.integers(0, 2**32), st.sampled_from([None, *ROOTS])
)
def test_the_tag_of_an_honest_sum_is_accepted(n_sites, n_words, seed, root):
    rows, tags, r = tagged(n_sites, n_words, seed)
    if root is not None:
        r = root
        tags = total([tag_words(tag_of(row, root)) for row in rows], TAG_WORDS)
    assert is_sum(tag_of(total(rows, n_words), r), tags, r, n_words, n_sites)


FORGERIES = {
    "one bit": lambda words, rows: np.r_[words[:-1], words[-1] ^ np.uint64(1)],
    "the highest bit": lambda words, rows: np.r_[words[0] ^ np.uint64(1 << 63), words[1:]],
    "moved from one word to the next": lambda words,
    rows: np.r_[words[0] + np.uint64(1), words[1] - np.uint64(1), words[2:]],
    "two words exchanged": lambda words, rows: words[np.r_[1, 0, 2 : len(words)]],
    "nothing": lambda words, rows: np.zeros_like(words),
    "a site's words left out": lambda words, rows: words - rows[0],
    "a site's words twice": lambda words, rows: words + rows[0],
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
@given(st.integers(2, 9), st.integers(3, 33), st.integers(0, 2**32))
def test_a_forged_sum_is_refused(forgery, n_sites, n_words, seed):
    rows, tags, r = tagged(n_sites, n_words, seed)
    words = total(rows, n_words)
    forged = FORGERIES[forgery](words, rows).astype("<u8")
    assert not np.array_equal(forged, words)
    assert not is_sum(tag_of(forged, r), tags, r, n_words, n_sites)


@given(st.integers(2, 9), st.integers(1, 33), st.integers(0, 2**32))
def test_a_sum_is_refused_under_other_tags_another_root_and_of_fewer_sites(n_sites, n_words, seed):
    rows, tags, r = tagged(n_sites, n_words, seed)
    tag = tag_of(total(rows, n_words), r)
    assert not is_sum(tag, tags + np.array([1, 0, 0, 0], dtype="<u8"), r, n_words, n_sites)
    assert not is_sum(tag, tags, r, n_words, n_sites - 1)
    other = bytes([r[0] ^ 1]) + r[1:]
    assert not is_sum(tag_of(total(rows, n_words), other), tags, other, n_words, n_sites)


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 2.0**23])
def test_what_would_wrap_is_refused_and_its_size_not_told(value):
    values = np.array([[0.5], [value]])
    with pytest.raises(BadData) as refused:
        fp.encode(
            values, [fp.exponents_for(np.array([2.0**20]), 4)[0]], 4, np.zeros(2, dtype="<u8")
        )
    assert not any(c.isdigit() for c in str(refused.value))
    if not np.isfinite(value):
        with pytest.raises(BadData, match="not finite"):
            summand(Layout(0, 0, 1), np.zeros((0, 0)), (value,), (), 2)


@pytest.mark.parametrize(("shape", "scalars"), [((3, 2), ()), ((2, 2), (1.0,)), ((2, 2), ())])
def test_an_answer_of_another_length_is_refused(shape, scalars):
    with pytest.raises(BadData, match="is summed"):
        summand(Layout(3, 2, 1), np.zeros(shape), scalars, (0, 0), 2)
