"""Cross products by learning with errors: what opens is the product, and what a hostile message
tells.
"""

import os
from dataclasses import dataclass
from math import log2, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_array_equal

from coreg_core.errors import BadData
from coreg_core.secure import cross_products as cross

SEED = bytes(range(32))
WORD = np.uint64


def columns(n, count, seed):
    x = default_rng(seed).normal(size=(n, count))
    return x / np.linalg.norm(x, axis=1).max()
    return x / np.linalg.norm(x, axis=1).max()


def random_words(rng, shape):
    return rng.integers(0, 2**64, size=shape, dtype=WORD)


def relative_mean(words):
    """The mean, by that of uniform words."""
    return words.astype(float).mean() / 2**63


def limit_of_error(n, places):
    """Six deviations and √n of [Y; R]ᵀE, in units of the product, and the rounding of Y to 16
    places.
    """
    of_a_row = cross.DEVIATION * 2**15 / sqrt(3)
    of_an_entry = of_a_row * sqrt(cross.RANDOM_ROWS)
    return 6 * of_an_entry * 2.0**-places + n * 2.0**-17


@pytest.mark.parametrize("n", [1, 150, 3000])
def test_the_sum_of_two_sites_shares_opens_their_product(n):
    w = columns(n, 5, 1)
    y = columns(n, 3, 2)
    of_w, of_y = cross.exponents(n)
    nothing = np.zeros((n, 0), dtype=np.int64)
    fixed_w = cross.fixed(w, of_w)
    fixed_y = cross.fixed(y, of_y)
    one, sent = cross.announce(SEED, fixed_w, nothing, os.urandom)
    other, asked = cross.announce(SEED, nothing, fixed_y, os.urandom)

    first = one.share_of_own_encryption(asked.projected)
    second = other.share_of_own_projection(sent.encrypted)

    total = cross.rounded(first) + cross.rounded(second)
    product = cross.opened(total, of_w + of_y)
    error = np.abs(product - y.T @ w).max()
    limit = limit_of_error(n, of_w + of_y)
    assert error < limit
    assert limit < max(1e-2, n * 1e-5)


def test_a_changed_message_changes_the_share():
    nothing = np.zeros((150, 0), dtype=np.int64)
    y = cross.fixed(columns(150, 3, 2), 16)
    secret, _ = cross.announce(SEED, nothing, y, os.urandom)
    rows = 150 + cross.RANDOM_ROWS
    encrypted = random_words(default_rng(0), (rows, 5))
    changed = encrypted.copy()
    changed[0, 0] += WORD(1 << 40)
    share = secret.share_of_own_projection(encrypted)
    assert (secret.share_of_own_projection(changed) != share).any()


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 2500), st.sampled_from([1, 7, 2**15, 2**23 - 1]))
def test_the_share_of_a_projection_is_an_exact_product_of_words(seed, rows, largest):
    rng = default_rng(seed)
    small = rng.integers(-largest, largest, size=(rows, 2), endpoint=True)
    encrypted = random_words(rng, (rows, 3))
    no_columns = np.zeros((cross.SECRET_ROWS, 0), dtype=WORD)

    share = cross.Secret(no_columns, small).share_of_own_projection(encrypted)

    # Python's integers have no limit.
    exact = small.T.astype(object) @ encrypted.astype(object)
    assert share.tolist() == (exact % 2**64).tolist()


def without_noise(S, n_projected):
    """Random bytes of a site whose secret is S, and whose R and errors are zero."""
    zero = np.full(cross.RANDOM_ROWS * n_projected, 1 << 15, dtype="<u2")
    pieces = [S.tobytes(), zero.tobytes()]

    def random_bytes(size):
        if pieces:
            return pieces.pop(0)
        return bytes(size)

    return random_bytes


def public_rows(seed, n_rows, places):
    """Rows of A: without R the projection of a unit vector is one."""
    units = np.eye(n_rows, dtype=np.int64)[:, places]
    nothing = np.zeros((n_rows, 0), dtype=np.int64)
    random_bytes = without_noise(np.zeros(0, dtype=WORD), len(places))
    _, message = cross.announce(seed, nothing, units, random_bytes)
    return message.projected


def test_the_public_matrix_depends_on_its_seed_and_its_place_alone():
    rows = public_rows(SEED, 1500, [7, 8, 1400])
    fewer_rows = public_rows(SEED, 10, [7, 8])
    of_another_seed = public_rows(SEED[::-1], 10, [7, 8])
    assert_array_equal(fewer_rows, rows[:2])
    assert (of_another_seed != rows[:2]).any()
    assert (rows[2] != rows[1]).any()


def test_the_public_matrix_has_the_mean_of_uniform_words():
    rows = public_rows(SEED, 40, np.arange(40))
    assert abs(relative_mean(rows) - 1) < 0.01


def test_an_encryption_without_errors_is_an_exact_product_of_words():
    S = random_words(default_rng(0), (cross.SECRET_ROWS, 2))
    zeros = np.zeros((5, 2), dtype=np.int64)
    _, message = cross.announce(SEED, zeros, zeros, without_noise(S, 2))
    expected = public_rows(SEED, 5, np.arange(5)) @ S
    assert_array_equal(message.encrypted[:5], expected)


def announced():
    zeros = np.zeros((10, 2), dtype=np.int64)
    return cross.announce(SEED, zeros, zeros, os.urandom)


def test_a_secret_is_fresh_so_the_same_columns_are_never_sent_twice():
    one, sent = announced()
    other, sent_again = announced()
    assert (one.S != other.S).all()
    assert (sent.encrypted != sent_again.encrypted).all()


def test_a_secret_has_the_mean_of_uniform_words():
    """A short secret would be fatal."""
    secret, _ = announced()
    assert abs(relative_mean(secret.S) - 1) < 0.05


def test_random_rows_reach_both_ends_of_their_range():
    secret, _ = announced()
    R = secret.rows[10:]
    assert R.min() >= -(1 << 15)
    assert R.min() < -32_700
    assert R.max() > 32_700
    assert R.max() < 1 << 15


def test_errors_are_standard_normal():
    errors = cross.normal((200_000,), os.urandom)
    assert errors.std() == pytest.approx(1.0, rel=0.02)
    assert abs(errors.mean()) < 0.02


def test_what_others_can_open_of_a_column_is_less_than_its_entropy():
    """The leftover hash lemma: H is uniform within 2⁻¹²⁸, given all words of it that can be
    opened.
    """
    entropy = 16 * cross.RANDOM_ROWS
    words = 64 * cross.SECRET_ROWS + 32 * cross.MOST_ENCRYPTED
    assert entropy >= words + 2 * 128


@pytest.mark.parametrize("value", [1.5, np.nan, np.inf])
def test_columns_beyond_one_are_refused(value):
    with pytest.raises(BadData, match="at most 1"):
        cross.fixed(np.array([[value]]), 10)


# --- attacks that earlier forms fell to -----------------------------------------------------------


def solved(A, b, secret):
    """Whether Gauss elimination modulo 2⁶⁴ finds the secret."""
    size = A.shape[1]
    M = np.column_stack([A, b])
    for c in range(size):
        # A pivot has an inverse if it is odd.
        column = M[c:, c]
        odd = np.flatnonzero(column & WORD(1))
        if not len(odd):
            return False
        pivot = c + odd[0]
        M[[c, pivot]] = M[[pivot, c]]
        inverse = pow(int(M[c, c]), -1, 2**64)
        M[c] *= WORD(inverse)
        below = M[c + 1 :]
        below -= np.outer(below[:, c], M[c])
    x = M[:size, size].copy()
    for c in range(size - 1, 0, -1):
        x[:c] -= M[:c, c] * x[c]
    return bool((x == secret).all())


@dataclass
class Attack:
    """A hostile H packs coordinates of E into digits of ``base`` bits of one word."""

    deviation: float
    digits: int
    base: int
    round_shares: bool
    size: int = 96

    def __post_init__(self):
        rng = default_rng(0)
        rows = 400
        self.A = random_words(rng, (rows, self.size))
        self.S = random_words(rng, (self.size, 3))
        errors = self.deviation * rng.normal(size=(rows, 3))
        self.E = np.rint(errors).astype(np.int64)
        self.B = self.A @ self.S + self.E.view(WORD)
        self.hints = self.size // self.digits + 6
        self.asked = slice(0, self.hints * self.digits)
        self.bits = 64
        if self.round_shares:
            self.bits = 32

    def packed(self, M):
        """Rows of M by the hostile H: each word has a coordinate for each digit."""
        places = WORD(self.base) * np.arange(self.digits, dtype=WORD)
        shifts = places + WORD(64 - self.bits)
        weights = WORD(1) << shifts
        groups = M[self.asked].reshape(self.hints, self.digits, -1)
        words = groups * weights[None, :, None]
        return words.sum(axis=1, dtype=WORD)

    def share(self):
        """What `Secret.share_of_own_encryption` returns for this H."""
        share = WORD(0) - self.packed(self.A) @ self.S
        if self.round_shares:
            return cross.rounded(share) << WORD(32)
        return share

    def errors(self):
        """The coordinates of E that are read, digit by digit, from the lowest."""
        opened = self.packed(self.B) + self.share()
        left = opened.view(np.int64) >> np.int64(64 - self.bits)
        half = 1 << (self.base - 1)
        mask = (1 << self.base) - 1
        digits = []
        for _ in range(self.digits):
            digit = ((left + half) & mask) - half
            digits.append(digit)
            left = (left - digit) >> self.base
        return np.stack(digits, axis=1).reshape(-1, 3)

    def share_of_right_coordinates(self):
        right = self.errors() == self.E[self.asked]
        return float(right.mean())

    def finds_the_secret(self):
        products = self.B[self.asked] - self.errors().view(WORD)
        A = self.A[self.asked]
        columns_of_S = zip(products.T, self.S.T, strict=True)
        return all(solved(A, b, s) for b, s in columns_of_S)


def test_shares_that_leave_whole_lose_the_secret():
    attack = Attack(deviation=64.0, digits=7, base=9, round_shares=False)
    assert attack.share_of_right_coordinates() > 0.98
    assert attack.finds_the_secret()


def test_rounded_shares_keep_the_secret():
    attack = Attack(deviation=cross.DEVIATION, digits=3, base=10, round_shares=True)
    assert attack.share_of_right_coordinates() < 0.5
    assert not attack.finds_the_secret()


def test_two_coordinates_a_word_are_less_than_a_third_of_the_secret():
    """`core_svp` judges the dimension that is left."""
    disclosed = 2.28 * cross.MOST_PROJECTED
    assert disclosed < cross.SECRET_ROWS / 3


def core_svp(n, log_q, deviation):
    """Bits of the primal attack: 0.292 β of the least β that solves (Alkim et al. 2016)."""
    log_deviation = log2(deviation)

    def log_delta(b):
        base = (np.pi * b) ** (1 / b) * b / (2 * np.pi * np.e)
        return log2(base) / (2 * (b - 1))

    def feasible(b):
        delta = log_delta(b)
        needed = log_deviation + 0.5 * log2(b)
        for m in range(max(b - n, 50), 8 * n, max(8, n // 128)):
            d = n + m + 1
            volume = m * log_q / d
            if needed <= (2 * b - d - 1) * delta + volume:
                return True
        return False

    infeasible = 60
    least = 3000
    while least - infeasible > 1:
        middle = (infeasible + least) // 2
        if feasible(middle):
            least = middle
        else:
            infeasible = middle
    return 0.292 * least


def test_the_estimate_of_security_knows_published_ones():
    kyber_512 = core_svp(512, log2(3329), sqrt(1.5))
    frodo_kem_640 = core_svp(640, 15, 2.8)
    assert kyber_512 == pytest.approx(118, abs=2)
    assert frodo_kem_640 == pytest.approx(145, abs=6)


def test_an_outsider_needs_250_bits():
    assert core_svp(cross.SECRET_ROWS, 64, cross.DEVIATION) > 250


def test_with_all_that_hostile_columns_disclose_150_bits_are_left():
    entropy_of_an_error = log2(cross.DEVIATION * sqrt(2 * np.pi * np.e))
    disclosed = round(32 / entropy_of_an_error * cross.MOST_PROJECTED)
    assert core_svp(cross.SECRET_ROWS - disclosed, 64, cross.DEVIATION) > 150
