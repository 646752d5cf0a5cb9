"""The keys of an attempt: members read sums only, the coordinator nothing. A cheat is named."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.tiny import make_plan, offer_of
from numpy.testing import assert_array_equal

from coreg_core.errors import BadData, Refused
from coreg_core.shapes import TAG_WORDS
from coreg_sim.simulate import simulated_keys
from site_agent.machine.roster import transcript_of

SITES = ("a", "b", "c")
PLAN = make_plan(aggregation="secure", min_sites=3)
STEP = b"the context of one step"


class Members:
    """The sites of an attempt, up to any stage of its keys."""

    def __init__(self, attempt=0):
        self.secrets = {
            s: simulated_keys(s).draw(replace(offer_of(s, PLAN, attempt), identity=""))
            for s in SITES
        }
        self.roster = tuple(secret.offer for secret in self.secrets.values())

    def wrapped(self):
        about = self.roster, transcript_of(PLAN, self.roster)
        found = {site: secret.wrap(*about) for site, secret in self.secrets.items()}
        return {to: {site: found[site][to] for site in SITES if site != to} for to in SITES}

    def seals(self):
        return {site: self.secrets[site].unwrap(parts) for site, parts in self.wrapped().items()}


@pytest.fixture(scope="module")
def seals():
    return Members().seals()


def unused(seals):
    return {site: replace(seal, used=set()) for site, seal in seals.items()}


def random_words(seed, n=9):
    return np.random.default_rng(seed).integers(0, 1 << 64, n, dtype="<u8")


def added(words):
    return np.add.reduce(list(words))


CONTEXTS = st.binary(min_size=32, max_size=32)


@given(
    context=CONTEXTS,
    seed=st.integers(0, 1 << 32),
    answering=st.sampled_from([SITES, ("a", "b"), ("c",)]),
    n=st.integers(0, 40),
)
def test_members_open_the_sum_and_the_coordinator_sees_neither_it_nor_an_answer(
    seals, context, seed, answering, n
):
    seals = unused(seals)
    # Of honest sites, whose words are far from overflow: the tag counts them as numbers.
    plain = {site: random_words([seed, i], n) >> np.uint64(4) for i, site in enumerate(answering)}
    sent = {site: seals[site].mask(context, words, answering) for site, words in plain.items()}
    total = added(sent.values())
    for seal in seals.values():
        assert_array_equal(seal.open(context, total, n, answering), added(plain.values()))
    for words, told in zip(
        [*sent.values(), total], [*plain.values(), added(plain.values())], strict=True
    ):
        assert len(words) == n + TAG_WORDS
        assert not np.any(words[:n] == told), (
            "every word is under a keystream, those of the sum too"
        )


@given(word=st.integers(0, 12), bit=st.integers(0, 63))
def test_a_sum_that_was_changed_in_one_bit_is_found_by_every_member(seals, word, bit):
    seals = unused(seals)
    total = added(seals[site].mask(STEP, random_words(i), SITES) for i, site in enumerate(SITES))
    total[word] ^= np.uint64(1 << bit)
    for seal in seals.values():
        with pytest.raises(BadData, match="does not match the sites' answers"):
            seal.open(STEP, total, 9, SITES)


@pytest.mark.parametrize(
    ("context", "answering", "n"),
    [(b"another step", SITES, 9), (STEP, ("a", "b"), 9), (STEP, SITES, 8)],
)
def test_a_site_that_means_another_step_other_sites_or_another_length_spoils_the_sum(
    seals, context, answering, n
):
    seals = unused(seals)
    sent = [seals[site].mask(STEP, random_words(1), SITES) for site in "ab"]
    other = seals["c"].mask(context, random_words(1), answering)
    with pytest.raises(BadData):
        seals["a"].open(STEP, added([*sent, other]), n, SITES)


def test_a_mask_is_used_once_and_no_attempt_has_anothers(seals):
    first = Members().seals()
    second = Members(attempt=1).seals()
    words = [s["a"].mask(STEP, random_words(0), SITES) for s in (unused(seals), first, second)]
    assert len({w.tobytes() for w in words}) == 3
    with pytest.raises(AssertionError, match="used once"):
        first["a"].mask(STEP, random_words(1), SITES)


def test_a_text_is_for_its_receiver_alone_and_of_one_step(seals):
    """Or for all members; the coordinator has no key of it, and a changed one is found."""
    seals = unused(seals)
    others = Members().seals()
    alone = seals["a"].close(STEP, b"a text", "b")
    shown = seals["a"].close(STEP, b"a text")
    assert b"a text" not in alone + shown
    assert seals["b"].open_text(STEP, alone, "a", to_all=False) == b"a text"
    assert [seals[s].open_text(STEP, shown, "a", to_all=True) for s in "bc"] == [b"a text"] * 2
    for seal, context, text, sender, to_all in (
        (seals["c"], STEP, alone, "a", False),  # another receiver
        (seals["c"], STEP, alone, "a", True),
        (seals["b"], STEP, alone, "c", False),
        (seals["b"], b"another step", alone, "a", False),
        (seals["b"], STEP, bytes([alone[0] ^ 1]) + alone[1:], "a", False),
        (others["b"], STEP, shown, "a", True),
    ):
        with pytest.raises(BadData):
            seal.open_text(context, text, sender, to_all=to_all)


def test_blinded_words_add_up_and_one_senders_are_unreadable(seals):
    plain = {site: random_words(i) for i, site in enumerate("bc")}
    sent = {site: seals[site].blind(STEP, words, ("b", "c"), "a") for site, words in plain.items()}
    assert_array_equal(added(sent.values()), added(plain.values()))
    assert not any(np.any(sent[site] == plain[site]) for site in "bc")
    elsewhere = seals["b"].blind(b"another step", plain["b"], ("b", "c"), "a")
    assert not np.any(elsewhere == sent["b"])


# --- whoever cheats -------------------------------------------------------------------------------


def test_a_contribution_that_did_not_arrive_whole_is_refused():
    members = Members()
    parts = members.wrapped()["a"]
    flipped = parts["b"][:-1] + bytes([parts["b"][-1] ^ 1])
    other_attempt = Members().wrapped()["a"]["b"]
    for changed in (b"", b"too short", parts["c"], flipped, other_attempt):
        with pytest.raises(Refused, match=r"contribution of b .*cannot be opened"):
            members.secrets["a"].unwrap({**parts, "b": changed})


def test_nothing_of_a_key_is_in_what_could_be_logged():
    members = Members()
    seals = members.seals()
    shown = "".join(
        map(repr, [simulated_keys("a"), members.secrets["a"], *seals.values(), members])
    )
    for secret in [
        members.secrets["a"].contribution,
        *seals["a"].secrets.values(),
        seals["a"].key,
    ]:
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
    assert "Ed25519" not in shown
