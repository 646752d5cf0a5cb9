"""policy.toml: every key decides something, the border itself is allowed, and a mistake in the file is never a default."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coreg_core.agreement.question_rules import most_questions
from coreg_core.errors import UsageError
from coreg_core.kernels.leave_one_out import RIDGES
from coreg_core.protocol.plan import Additive, Agreement
from site_agent.machine.site_data import PrivateData
from site_agent.policy.policy import Policy, as_written, read_policy
from site_agent.policy.units import scaled

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "machine"))
from tiny import make_plan

# key: a policy's value, the plan that just fits, the plan that does not
BORDERS = {
    "max_rounds": (50, {"max_rounds": 50}, {"max_rounds": 51}),
    "min_sites": (3, {"min_sites": 3}, {"min_sites": 2}),
    "coupling_min": (0.5, {"coupling": (0.5, 2.0)}, {"coupling": (2.0, 0.49)}),
    "coupling_max": (2.0, {"coupling": (0.5, 2.0)}, {"coupling": (0.5, 2.000001)}),
    "relative_coupling_max": (2.0, {"relative": True, "coupling": (0.0, 2.0)}, {"relative": True, "coupling": (2.1,)}),
    "disclose_label_count": (False, {"relative": False}, {"relative": True}),
    "most_couplings": (2, {"coupling": (0.5, 2.0)}, {"coupling": (0.5, 1.0, 2.0)}),
    "most_threads": (2, {"threads": 2}, {"threads": 3}),
    "disclose_target_norm": (False, {"label_units": "standardised"}, {"label_units": "raw"}),
    "disclose_bound": ("a-priori", {"bound": "a-priori"}, {"bound": "tight"}),
    "forms": (("exact",), {"form": "exact"}, {"form": "landmarks"}),
    "kernels": (("gaussian", "linear"), {"form": "linear", "kernel": "laplacian"}, {"kernel": "laplacian"}),
    "degree_max": (3, {"kernel": "laplacian", "degree": 400}, {"kernel": "polynomial", "degree": 4}),
    "schedules": (("consensus",), {"schedule": "consensus"}, {"schedule": "conjugate-gradients"}),
    "label_units": (("centred", "standardised"), {"label_units": "centred"}, {"label_units": "raw"}),
    "bandwidth_min": (0.5, {"bandwidth": 1.0}, {"bandwidth": 0.999}),
    "bandwidth_max": (10.0, {"bandwidth": 20.0}, {"bandwidth": 20.1}),
    "ridge_min": (0.5, {"form": "linear", "ridge": 1.0}, {"form": "linear", "ridge": 0.999}),
    "ridge_max": (1.5, {"form": "linear", "ridge": 9.0}, {"form": "linear", "ridge": 9.01}),
}


def test_every_key_has_a_border_here():
    # label_share_max: tests/attacks; targets: below; the others: test_additive_policy.py, tests/machine/test_scoring.py and
    # test_forecast.py
    additive = {"objectives", "common_rows", "grouped_at_least", "open_residuals", "scoring", "disclose_forecast"}
    sums = {"answers", "peers", "membership_changes", "ids_secret"}
    below = {"runs_a_day", "questions_a_day"}  # tests/agent/test_day.py
    below |= {"most_questions", "factor_memory", "label_share_max", "targets"}
    assert set(BORDERS) | below | additive | sums == set(Policy.model_fields)


# Squared distances 2, 2 and 2, so their median is 2; ‖x‖² are 2, 2 and 2, so their mean is 2 and their sum 6.
ROWS = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
DATA = PrivateData(ROWS, np.array([1.0, 2.0, 4.0]), ROWS[:2], "ids")

PINNED = {name: letter * 64 for name, letter in zip("abc", "123", strict=True)}


@pytest.mark.parametrize(
    ("policy", "plan", "said"),
    [
        ({"answers": "sums"}, {"answers": "clear"}, "answers='clear' would show the coordinator"),
        ({"answers": "clear"}, {"answers": "clear"}, ""),
        ({"peers": PINNED}, {"answers": "sums", "min_sites": 3}, ""),
        ({"answers": "clear", "peers": PINNED}, {"answers": "sums", "min_sites": 3}, ""),
        ({"peers": {"a": "1" * 64}}, {"answers": "sums", "min_sites": 3}, "ask the operators of b, c"),
        (
            {"peers": PINNED},
            {"answers": "sums", "min_sites": 3, "membership_changes": True},
            "(membership_changes=false)",
        ),
        (
            {"peers": PINNED, "membership_changes": True},
            {"answers": "sums", "min_sites": 3, "membership_changes": True},
            "",
        ),
    ],
)
def test_what_the_coordinator_may_learn(policy, plan, said):
    objection = Policy(**policy).objection(make_plan(**plan))
    assert (objection is None) if not said else (said in objection)


def test_under_sums_neither_norm_nor_bound_of_a_site_is_told_and_neither_is_objected_to():
    policy = Policy(peers=PINNED, disclose_target_norm=False, disclose_bound="a-priori")
    assert policy.objection(make_plan(answers="sums", min_sites=3, label_units="centred", bound="tight")) is None


def test_one_key_under_two_names_is_a_mistake(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(f'[peers]\na = "{"1" * 64}"\nb = "{"1" * 64}"\n')
    with pytest.raises(UsageError, match="that is one site"):
        read_policy(path)
    path.write_text('[peers]\na = "12"\n')
    with pytest.raises(UsageError, match="peers"):
        read_policy(path)


@pytest.mark.parametrize("key", BORDERS)
def test_the_border_is_allowed_and_one_step_beyond_is_refused_by_name(key):
    value, fits, beyond = BORDERS[key]
    terms = {"min_sites": 3, "coupling": (1.0,), "max_rounds": 10, "threads": 1, "label_units": "standardised"}
    terms["bound"] = "a-priori"
    policy = Policy(answers="clear", **{key: value})
    assert policy.objection(make_plan(**(terms | fits)), DATA) is None
    objection = policy.objection(make_plan(**(terms | beyond)), DATA)
    assert objection is not None
    assert key in objection
    assert "this site's policy" in objection


def test_every_broken_key_is_named_at_once():
    plan = make_plan(max_rounds=10**6, threads=65, coupling=(1e9,))
    objection = Policy(answers="clear").objection(plan) or ""
    assert all(key in objection for key in ("max_rounds", "most_threads", "coupling_max"))


def test_how_many_questions_is_no_objection_but_a_budget():
    plan = make_plan(max_rounds=7)
    assert Policy(answers="clear").questions(plan) == most_questions(7) == 16
    assert Policy(answers="clear", most_questions=3).questions(plan) == 3
    assert Policy(answers="clear", most_questions=3).objection(plan) is None, (
        "a run that takes longer than it is said to is held to it"
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("max_round = 5", "max_round"),
        ("max_rounds = 0", "max_rounds"),
        ("max_rounds = 1.5", "max_rounds"),
        ("most_questions = 0", "most_questions"),
        ("coupling_max = nan", "coupling_max"),
        ("coupling_max = -1", "coupling_max"),
        ('disclose_bound = "loose"', "disclose_bound"),
        ('disclose_target_norm = "perhaps"', "disclose_target_norm"),
        ("[policy]\nmax_rounds = 5", "policy"),
        ("max_rounds 5", "line 1"),
        ("max_rounds = 5\nmax_rounds = 6", "line 2"),
    ],
)
def test_a_mistake_in_the_file(tmp_path, text, named):
    path = tmp_path / "policy.toml"
    path.write_text(text + "\n")
    with pytest.raises(UsageError, match=named) as error:
        read_policy(path)
    assert "policy.toml" in str(error.value)


def test_without_a_file_and_with_an_empty_one(tmp_path):
    (tmp_path / "policy.toml").write_text("")
    assert read_policy(None) == read_policy(tmp_path / "policy.toml") == Policy()
    with pytest.raises(UsageError, match="no such file"):
        read_policy(tmp_path / "none.toml")


# --- in the site's own units --------------------------------------------------------------------------------------


def test_units_are_the_site_s_own_so_that_wider_columns_scale_a_plan_s_numbers_down():
    wide = PrivateData(10.0 * ROWS, DATA.y, 10.0 * DATA.Z, "ids")
    plain, wider = (scaled(Agreement(form="linear", ridge=1.0), d) for d in (DATA, wide))
    assert (plain.ridge, plain.of_all) == pytest.approx((0.5, 1 / 6))
    assert (wider.ridge, wider.of_all) == pytest.approx((0.005, 1 / 600))
    gaussian, laplacian = (scaled(Agreement(kernel=k, bandwidth=2.0), wide) for k in ("gaussian", "laplacian"))
    assert gaussian.bandwidth == pytest.approx(0.01)
    assert laplacian.bandwidth == pytest.approx(0.1)


def test_a_rule_is_evaluated_on_the_site_s_own_rows_and_is_not_judged_but_under_the_polynomial_kernel():
    none = scaled(Agreement(), DATA)
    assert (none.bandwidth, none.ridge, none.of_all) == (None, None, None)
    cubes = scaled(Agreement(kernel="polynomial", ridge="loo", degree=3, offset=1.0), DATA)  # (2 + 1)³ on the diagonal
    assert (cubes.ridge, cubes.of_all) == pytest.approx((RIDGES.min() / 27, RIDGES.max() / 81))


def test_every_value_of_a_grid_counts():
    rng = np.random.default_rng(0)
    data = PrivateData(rng.normal(size=(6, 2)), rng.normal(size=6), rng.normal(size=(9, 2)), "ids")
    plain, tried = (scaled(Additive(ridge=0.3, rows=rows), data) for rows in ("private", "common"))
    assert (plain.ridge, plain.of_all) == pytest.approx((0.3, 0.3 / 6))
    assert (tried.ridge, tried.of_all) == pytest.approx((0.3 * 0.1 / 3.0, 0.3 / 0.3 / 6))  # noise over prior


def test_rows_without_a_scale_are_left_to_factoring_and_one_labelled_row_has_that_of_the_shared_ones():
    alike = PrivateData(np.ones((3, 2)), np.arange(3.0), np.ones((4, 2)), "ids")
    assert scaled(Agreement(bandwidth=1e-9, ridge=1.0), alike).bandwidth is None
    assert scaled(Agreement(form="linear", ridge=1.0), PrivateData(0 * ROWS, DATA.y, DATA.Z, "ids")).ridge is None
    one = PrivateData(ROWS[:1], DATA.y[:1], ROWS[1:], "ids")
    assert scaled(Agreement(bandwidth=1.0), one).bandwidth == pytest.approx(0.5)


def test_every_reason_is_told_at_once_and_none_has_a_figure_of_the_site_s_rows():
    plan = make_plan(kernel="polynomial", degree=9, label_units="raw", ridge=1e-9, bandwidth=0.1, max_rounds=20_000)
    said = Policy(answers="clear", kernels=["gaussian"]).objections(plan, DATA)
    named = ("max_rounds=10000", "kernels=['gaussian']", "degree_max=3", "label_units=[", "ridge_min=0.01")
    assert [key for key in named if not any(key in text for text in said)] == []
    assert len(said) == len(named)
    other = PrivateData(ROWS * np.pi, DATA.y, DATA.Z, "ids")
    assert said == Policy(answers="clear", kernels=["gaussian"]).objections(plan, other)
    assert "this site's operator consent" in (Policy(answers="clear").objection(plan, DATA) or "")


def test_targets_of_the_additive_objective():
    policy = Policy(answers="clear", objectives=["additive"], targets=["raw"])
    plan = make_plan()
    assert policy.objection(replace(plan, objective=Additive(targets="raw")), DATA) is None
    assert "targets=['raw']" in (policy.objection(replace(plan, objective=Additive()), DATA) or "")


WRITTEN = {
    "nothing": {},
    "everything that may be left out": {
        "most_questions": 40,
        "grouped_at_least": 3,
        "forms": ["linear"],
        "ridge_min": 1e-7,
        "scoring": True,
        "peers": {"north": "0" * 64, "a site.of-ours": "1" * 64, "of\x7f old": "2" * 64},
        "coupling_max": float("inf"),
        "factor_memory": 1e300,
    },
}


@pytest.mark.parametrize("keys", WRITTEN.values(), ids=WRITTEN.keys())
def test_a_policy_is_told_as_it_would_be_written(keys):
    policy = Policy.model_validate(keys)
    told = as_written(policy)
    assert Policy.model_validate(tomllib.loads("\n".join(told))) == policy
    assert not any(word in " ".join(told) for word in ("None", "True", "False", "("))


def test_what_is_told_of_a_policy_has_no_secret_in_it():
    told = " ".join(as_written(Policy(ids_secret="agreed by telephone")))
    assert 'ids_secret = "(not shown)"' in told
    assert "telephone" not in told
