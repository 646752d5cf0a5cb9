"""Labels under ε-local differential privacy: the ratio of probabilities, and no bias."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from numpy.random import default_rng

from coreg_core.additive.label_privacy import STEPS, TAIL, noise_variance, randomised, unbiased
from coreg_core.additive.terms import SiteSummary, terms_of
from coreg_core.objectives.additive import Additive
from coreg_core.plan import Plan, plan_fault
from coreg_core.terms import Iteration, Membership, Privacy
from site_agent.site_data import uniforms

YES_NO = Additive(task="classification")
NUMBERS = Additive(label_range=(-2.0, 6.0))
STEP = 8.0 / STEPS
EPSILONS = [0.1, 1.0, 4.0, 50.0]


def of(rules, label, first, second):
    """The messages of one label, for given random numbers."""
    draws = np.column_stack(np.broadcast_arrays(first, second)).astype(float)
    return randomised(np.full(len(draws), label), rules, draws)


def threshold(rules, label, least, second):
    """The largest random number whose message is at least ``least`` steps away, by bisection."""
    low = 1e-40
    high = 1.0
    for _ in range(200):
        middle = np.sqrt(low * high)
        [message] = of(rules, label, [middle], second)
        if abs(message - label) >= (least - 0.5) * STEP:
            low = middle
        else:
            high = middle
    return low


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_yes_no_label_is_flipped_as_often_as_epsilon_allows_and_not_less(epsilon):
    rules = replace(YES_NO, label_epsilon=epsilon)
    p = 1.0 / (1.0 + exp(epsilon))
    at_the_bound, above_it = of(rules, 1.0, [p, p * (1 + 1e-4)], 0.5)
    assert at_the_bound == 0.0, "the bound of the guarantee is rounded to the safe side"
    assert above_it == 1.0, "the bound of the guarantee is rounded to the safe side"


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_place_has_the_probability_of_the_geometric_mechanism(epsilon):
    rules = replace(NUMBERS, label_epsilon=epsilon)
    decay = epsilon / STEPS
    for places in (1, 2, 1000, STEPS):
        ratio = exp(-decay)
        tail = 2.0 * exp(-decay * places) / (1.0 + ratio)
        assert threshold(rules, 2.0, places, 0.9) == pytest.approx(tail, rel=1e-4)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_neighbouring_places_differ_by_no_more_than_their_share_of_epsilon(epsilon):
    rules = replace(NUMBERS, label_epsilon=epsilon)
    places = (1, 2, 3, 1000, 1001, 1002)
    tails = np.array([threshold(rules, 2.0, place, 0.1) for place in places])
    shares = -np.diff(tails)[[0, 1, 3, 4]]
    for nearer, farther in (shares[:2], shares[2:]):
        epsilon_of_a_place = epsilon / STEPS
        ratio = log(nearer / farther) / epsilon_of_a_place
        assert 1.0 - 2.0**-18 < ratio < 1.0, "the margin covers the errors of float64"


def test_messages_are_on_the_grid_and_within_the_tail_of_the_range():
    rules = replace(NUMBERS, label_epsilon=2.0)
    label = np.array([1e9, -1e9, 0.3])
    [least] = uniforms([bytes(32)])
    for tail in (least, np.ones(2)):
        draws = np.tile(tail, (3, 1))
        messages = randomised(label, rules, draws)
        places = (messages + 2.0) / STEP
        assert places == pytest.approx(np.rint(places), abs=1e-6)
        largest = np.abs(messages).max()
        assert largest < 6.0 + (TAIL + 1) * 8.0 / 2.0


@pytest.mark.parametrize("rules", [YES_NO, replace(YES_NO, label_epsilon=1.0), NUMBERS])
def test_told_labels_have_no_bias_and_the_stated_variance(rules):
    rng = default_rng(0)
    n = 200_000
    for label in (0.0, 1.0):
        labels = np.full(n, label)
        messages = unbiased(randomised(labels, rules, rng.random((n, 2))), rules)
        variance = noise_variance(rules)
        standard_error = np.sqrt(variance / n)
        assert messages.mean() == pytest.approx(label, abs=4 * standard_error + STEP)
        assert messages.var() == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("private", [YES_NO, NUMBERS])
def test_the_deviation_of_told_labels_leaves_room_for_their_noise(private, epsilon):
    """Labels travel as so many deviations; the few that are clipped shift no mean."""
    rules = replace(private, label_epsilon=epsilon)
    rng = default_rng(1)
    y = (rng.random(20_000) < 0.05).astype(float)  # few yes, or nearly equal numbers
    draws = rng.random((len(y), 2))
    messages = unbiased(randomised(y, rules, draws), rules)
    labelled = np.ones(len(y), dtype=bool)
    level = float(messages.mean())
    deviation = float(messages.std(ddof=1))
    summary = SiteSummary(labelled, 5, 1.0, (level,), (deviation,), 0)
    sent = terms_of(rules, [summary, summary]).labels(messages, 0)
    assert np.mean(np.abs(sent) == 1.0) < 1e-3
    assert abs(sent.mean()) < 1e-4


def test_random_numbers_of_secrets_are_positive_and_even():
    assert uniforms([bytes(32)]).min() > 0.0
    assert uniforms([b"\xff" * 32]).max() <= 1.0
    rng = default_rng(2)
    draws = uniforms([rng.bytes(32) for _ in range(20_000)])
    assert draws.mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.01)
    correlation = np.corrcoef(draws.T)[0, 1]
    assert abs(correlation) < 0.03


def plan_of(terms):
    sites = Membership(tuple("abc"), 3)
    return Plan("run-1", "f", sites, terms, Iteration(), Privacy())


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"label_range": (3.0, 1.0)}, "the lowest label, and a higher one"),
        ({"label_range": (3.0,)}, "the lowest label, and a higher one"),
        ({"label_range": (-1e308, 1e308)}, "the lowest label, and a higher one"),
        ({"label_range": (0.0, 1.0), "task": "classification"}, "of a target of numbers"),
    ],
)
def test_a_range_that_no_numbers_have_is_a_fault(changed, fault):
    plan = plan_of(Additive(**changed))
    assert fault in plan_fault(plan)


def test_the_question_for_consent_states_the_guarantee_and_its_limits():
    terms = replace(YES_NO, label_epsilon=2.0)
    plan = plan_of(terms)
    question = terms.computable(plan, 50)
    assert f"at most by a factor of e^ε = {exp(2.0):.3g}" in question
    assert "Each correction, target and site that labels the individual adds ε" in question
    assert "Which individuals have a label, and that one was corrected, is public" in question
    for text in (terms.method(plan), terms.leaves(100)):
        assert "local differential privacy of ε = 2" in text
    assert "noise on labels 0.5" in Additive().method(plan)
