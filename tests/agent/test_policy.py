"""policy.toml: every key decides something, the border itself is allowed, a mistake in the file is
never a default; and how much of a sum is one label.
"""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from agent_files import write
from machine.tiny import against, make_plan, sealed

from coreg_core.agreement import label_share as leverage
from coreg_core.agreement.label_share import share_of_one_label
from coreg_core.agreement.views import make_view
from coreg_core.errors import UsageError
from coreg_core.kernels import Gaussian
from coreg_core.objectives.additive import Additive
from coreg_core.plan import MOST_RUNS, is_on_demand
from coreg_core.spans import EveryPoint, LabelledPoints
from site_agent.consent.consent import Consent
from site_agent.consent.memory import Memory
from site_agent.consent.policy import Policy, read_policy
from site_agent.site_data import PrivateData


def plain(**keys):
    """A policy that allows answers in the clear."""
    return Policy(**{"aggregation": "plaintext", **keys})


def objections(policy, plan, data=None):
    return Consent(policy, Memory(), lambda: 0.0).objections(plan, plan.sites[0], data)


def test_the_name_of_a_finished_run_stands_for_its_plan():
    """A coordinator could replace its models by those of another plan."""
    memory = Memory()
    consent = Consent(plain(), memory, lambda: 0.0)
    first = make_plan()
    memory.add({"kind": "Offer", "run": first.run, "plan": first.digest})
    memory.add({"kind": "Fetched", "run": first.run, "outcome": "CONVERGED"})
    assert consent.objections(first, "a") == [], "another attempt, of a coordinator's older backup"
    other = make_plan(max_rounds=3)
    assert other.run == first.run
    [objection] = consent.objections(other, "a")
    assert "ended here before, with another plan" in objection.reason


def test_a_site_takes_part_in_a_number_of_runs_a_day():
    """Each run adds lines to the ledger, which never shrinks."""
    memory = Memory()
    consent = Consent(plain(), memory, lambda: 0.0, day=lambda: "2026-11-30")
    plan = make_plan()
    asked = replace(plan, run=f"{plan.run}-ask-1")  # by a member
    assert is_on_demand(asked.run)
    offer = {"kind": "Offer", "run": "r", "plan": "p", "at": "2026-11-30T12:00:00"}
    for _ in range(MOST_RUNS - 1):
        memory.add(offer)
    memory.add({**offer, "at": "2026-11-29T12:00:00"})
    assert consent.objections(plan, "a") == []
    memory.add(offer)
    [objection] = consent.objections(plan, "a")
    assert objection.reason == "this site has taken part in 10000 such runs today, the most"
    assert consent.objections(asked, "a") == [], "they are counted apart"
    for _ in range(2 * MOST_RUNS * len(plan.sites)):
        memory.add({**offer, "run": asked.run})
    assert len(consent.objections(asked, "a")) == 1


# key: a policy's value, the plan that just fits, the plan that does not
BORDERS = {
    "max_rounds": (50, {"max_rounds": 50}, {"max_rounds": 51}),
    "min_sites": (3, {"min_sites": 3}, {"min_sites": 2}),
    "solvers": (
        ("block-coordinate-descent",),
        {"solver": "block-coordinate-descent"},
        {"solver": "conjugate-gradients"},
    ),
}
# key: the file of its test
ELSEWHERE = {
    **dict.fromkeys(
        (
            "objectives", "rows_per_feature", "noise", "label_noise", "label_epsilon",
            "least_labels", "least_rows", "least_columns", "aggregation", "membership_changes",
        ),
        "agent/test_policy.py",
    ),
    **dict.fromkeys(("scoring", "contributions", "scores_of_two"), "machine/test_scoring.py"),
    **dict.fromkeys(("openings", "models_per_individual"), "agent/test_memory.py"),
    "ids_secret": "agent/test_workers.py",
    "scores_a_day": "e2e/test_scores_on_demand.py",
    **dict.fromkeys(("alignment", "max_alignment_ids"), "agent/test_shared_ids.py"),
}  # fmt: skip
LINEAR = {"form": "linear"}
# What no operator chooses: the plan that just fits, the plan that does not, the refusal.
LIMITS = {
    "coupling": (
        {"coupling": (0.0, 100.0)},
        {"coupling": (0.0, 100.1)},
        "coupling = [0.0, 100.1] is above 100",
    ),
    "threads": ({"threads": 64}, {"threads": 65}, "threads = 65 is above 64"),
    "narrow": (
        {"bandwidth": 1.0},
        {"bandwidth": 0.999},
        "bandwidth = 0.999 is below 0.5 times the median distance",
    ),
    "wide": (
        {"bandwidth": 20.0},
        {"bandwidth": 20.1},
        "bandwidth = 20.1 is above 10 times the median distance",
    ),
    "small ridge": (
        LINEAR | {"ridge": 0.02},
        LINEAR | {"ridge": 0.0199},
        "ridge = 0.0199 is below 0.01 times the kernel's",
    ),
    "large ridge": (
        LINEAR | {"ridge": 6.0},
        LINEAR | {"ridge": 6.01},
        "ridge = 6.01 is above 1 times the kernel's sum",
    ),
}


def test_every_key_has_a_test():
    assert BORDERS.keys() | ELSEWHERE.keys() == set(Policy.model_fields)
    for key, file in ELSEWHERE.items():
        test = Path(__file__).parents[1] / file
        least = 2 if test == Path(__file__) else 1  # one is in the table above
        assert test.read_text().count(key) >= least, f"{file} has no test of {key}"
    assert len(Policy.model_fields) == 22


# Squared distances 2, 2 and 2, so their median is 2; ‖x‖² are 2, 2 and 2, so their mean is 2 and
# their sum 6.
ROWS = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
DATA = PrivateData(ROWS, np.array([1.0, 2.0, 4.0]), ROWS[:2], "ids")


@pytest.mark.parametrize("key", BORDERS)
def test_the_border_is_allowed_and_one_step_beyond_is_refused_by_name(key):
    value, fits, beyond = BORDERS[key]
    terms = {
        "min_sites": 3,
        "coupling": (1.0,),
        "max_rounds": 10,
        "threads": 1,
        "label_units": "standardised",
    }
    policy = plain(**{key: value})
    assert against(policy, make_plan(**(terms | fits)), DATA) is None
    objection = against(policy, make_plan(**(terms | beyond)), DATA)
    assert objection is not None
    assert key in objection


@pytest.mark.parametrize("limit", LIMITS)
def test_the_limits_of_every_agent_hold_under_any_policy(limit):
    fits, beyond, words = LIMITS[limit]
    terms = {"min_sites": 3, "coupling": (1.0,), "max_rounds": 10, "label_units": "standardised"}
    assert against(plain(), make_plan(**(terms | fits)), DATA) is None
    assert words in against(plain(), make_plan(**(terms | beyond)), DATA)


def test_an_objection_has_the_line_that_would_allow_it():
    """And the policy with that line allows the plan."""
    for key, (value, _, beyond) in BORDERS.items():
        plan = make_plan(**({"min_sites": 3, "coupling": (1.0,), "max_rounds": 10} | beyond))
        [found] = objections(plain(**{key: value}), plan)
        assert against(plain(**tomllib.loads(found.allow)), plan) is None


SECURE = {"aggregation": "secure", "min_sites": 3, "coupling": (1.0,)}


@pytest.mark.parametrize(
    ("policy", "plan", "words"),
    [
        ({}, {"aggregation": "plaintext"}, 'aggregation = "plaintext" would show the coordinator'),
        ({"aggregation": "plaintext"}, {"aggregation": "plaintext"}, ""),
        ({}, SECURE, ""),
        ({"aggregation": "plaintext"}, SECURE, ""),
        ({}, SECURE | {"membership_changes": True}, "(membership_changes = false)"),
        ({"membership_changes": True}, SECURE | {"membership_changes": True}, ""),
    ],
)
def test_what_the_coordinator_can_learn_is_held_to_the_policy(policy, plan, words):
    objection = against(Policy(**policy), make_plan(**plan))
    if words:
        assert words in objection
    else:
        assert objection is None


# --- the additive objective -----------------------------------------------------------------------


def additive(terms=None, **plan):
    return replace(sealed(make_plan(**plan)), objective=Additive(**terms or {}))


WIDE = PrivateData(
    np.arange(12.0).reshape(4, 3), np.arange(4.0), np.arange(12.0).reshape(4, 3), "ids"
)


def of_additive(**keys):
    return Policy(**{"objectives": ("additive",)} | keys)


def test_an_objective_has_to_be_named():
    assert "objectives" in against(Policy(objectives=("agreement",)), additive())
    assert "objectives" in against(plain(objectives=("additive",)), make_plan())
    for plan in (additive(), make_plan()):
        assert against(plain(), plan) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rows_per_feature", 12),
        ("noise", 0.02),
        ("label_noise", 0.75),
        ("least_labels", 30),
        ("least_rows", 200),
    ],
)
def test_a_plan_has_at_least_the_policys_noise_and_numbers(key, value):
    policy = of_additive(**{key: value})
    default = getattr(Additive(), key)
    assert against(policy, additive({key: value}), WIDE) is None
    objection = against(policy, additive(), WIDE)
    assert f"{key} = {default:g} is below {key} = {value:g}" in objection
    assert f"The study can have {key} = {value:g}" in objection
    assert against(of_additive(), additive(), WIDE) is None


@pytest.mark.parametrize("private", [{"task": "classification"}, {"label_range": (0.0, 1.0)}])
def test_a_plan_of_private_labels_has_at_most_the_policys_epsilon_and_needs_no_noise(private):
    policy = of_additive(label_epsilon=2.0, label_noise=0.75)
    assert against(policy, additive(private | {"label_epsilon": 2.0}), WIDE) is None
    objection = against(policy, additive(private | {"label_epsilon": 2.5}), WIDE)
    assert "label_epsilon = 2.5 is above label_epsilon = 2" in objection
    assert "label_noise" not in objection
    assert "label_noise = 0.5 is below" in against(policy, additive(), WIDE)


@pytest.mark.parametrize("columns", [[[0.5], [1.5], [2.5]], [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]])
def test_a_site_whose_sums_are_counts_needs_more_noise(columns):
    data = PrivateData(np.array(columns), np.arange(3.0), np.array(columns), "ids")
    assert "least_columns = 2" in against(of_additive(), additive(), data)
    assert against(of_additive(), additive({"noise": 0.1}), data) is None
    assert "least_columns = 4" in against(of_additive(least_columns=4), additive(), WIDE)


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("max_round = 5", "max_round"),
        ("max_rounds = 1.5", "max_rounds"),
        ("noise = nan", "noise"),
        ('solvers = ["fastest"]', "solvers"),
        ("max_rounds 5", "line 1"),
        ('scoring = "yes"', "scoring = 'yes': expected true or false, without quotes"),
        ("scoring = yes", "in `scoring = yes`. Write true, false, a number, or a text in quotes"),
        ("scoring = true\nscoring = true", "The key is set twice"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, text, named):
    with pytest.raises(UsageError, match=named) as error:
        read_policy(write(tmp_path, text + "\n", "policy.toml"))
    assert "policy.toml" in str(error.value)
    assert read_policy(None) == read_policy(write(tmp_path, "", "policy.toml")) == Policy()


def test_every_reason_is_given_at_once_and_none_has_a_figure_of_the_sites_rows():
    plan = make_plan(ridge=1e-9, bandwidth=0.1, max_rounds=20_000)
    reasons = [each.reason for each in objections(plain(), plan, DATA)]
    named = ("max_rounds = 10000", "is below 0.5 times", "is below 0.01 times")
    assert [key for key in named if not any(key in text for text in reasons)] == []
    assert len(reasons) == len(named)
    other = objections(plain(), plan, replace(DATA, X=ROWS * np.pi))
    assert reasons == [each.reason for each in other]
    assert "only default values" not in (against(plain(), plan, DATA) or "")
    assert (against(Policy(), plan, DATA) or "").endswith(
        "This policy has only default values. A policy.toml beside agent.toml, or --policy FILE,"
        " changes them."
    )


# --- the share of one label -----------------------------------------------------------------------


def problem(span, *, among, n=12, m=60):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, 3))
    Z = rng.normal(size=(m, 3))
    if among:
        Z[7] = X[3]
    y = rng.normal(size=n)
    return make_view(span, Gaussian(2.0), X, y, Z, 0.05), PrivateData(X, y, Z, "ids")


SHARES = pytest.mark.parametrize("span", [EveryPoint(), LabelledPoints()])
WEIGHTS = pytest.mark.parametrize("weight", [0.0, 8.0])


@SHARES
@WEIGHTS
def test_it_is_the_share_of_the_sum_s_variance_that_one_label_has(span, weight):
    """By its definition, label by label, from answers to labels that are one at one row and nothing
    elsewhere.
    """
    view, data = problem(span, among=True)
    zero = np.zeros((len(data.Z), 1))
    influences = []
    for label in np.eye(len(data.y)):
        one_label = make_view(span, Gaussian(2.0), data.X, label, data.Z, 0.05)
        influences.append(one_label.respond(zero, np.array([weight])))
    squares = np.concatenate(influences, axis=1) ** 2
    sizes = squares.sum(axis=1, keepdims=True)
    shares = squares / (sizes + 3 * np.median(sizes))
    share = share_of_one_label(view, data.X, data.Z, [weight], 4)
    assert share == pytest.approx(shares.max(), rel=1e-8)


@SHARES
@WEIGHTS
def test_the_share_on_a_path_is_at_least_that_of_each_weight(span, weight):
    view, data = problem(span, among=True)
    alone = share_of_one_label(view, data.X, data.Z, [weight], 4)
    assert share_of_one_label(view, data.X, data.Z, [0.0, weight], 4) >= alone * (1 - 1e-9)


@SHARES
@WEIGHTS
def test_the_share_falls_with_the_number_of_sites(span, weight):
    view, data = problem(span, among=True)
    of_four = share_of_one_label(view, data.X, data.Z, [weight], 4)
    assert share_of_one_label(view, data.X, data.Z, [weight], 8) < of_four


@pytest.mark.parametrize("span", [EveryPoint(), LabelledPoints()])
def test_of_many_instances_those_like_a_labelled_row_are_looked_at(span, monkeypatch):
    view, data = problem(span, among=True)
    whole = share_of_one_label(view, data.X, data.Z, [8.0], 4)
    monkeypatch.setattr(leverage, "MOST_ENTRIES", 0)
    monkeypatch.setattr(leverage, "OTHERS", 40)
    assert share_of_one_label(view, data.X, data.Z, [8.0], 4) == pytest.approx(
        whole, rel=0.2
    )  # the median is of fewer
    monkeypatch.setattr(leverage, "OTHERS", 5)
    assert leverage.some_instances(data.X, data.Z).tolist() == [0, 7, 14, 29, 44, 59]
