"""policy.toml: every key decides something, the border itself is allowed, and a mistake in the file is never a default."""

import sys
from pathlib import Path

import pytest

from coreg_core.errors import UsageError
from coreg_core.rounds.questions import most_questions
from site_agent.policy import Policy, read_policy

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
}


def test_every_key_has_a_border_here():
    # test_additive_policy.py, scoring in tests/machine/test_scoring.py, the forecast in test_forecast.py
    additive = {"objectives", "common_rows", "grouped_at_least", "open_residuals", "scoring", "disclose_forecast"}
    sums = {"answers", "peers", "membership_changes", "ids_secret"}
    assert set(BORDERS) | {"most_questions", "factor_memory"} | additive | sums == set(Policy.model_fields)


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
    assert policy.objection(make_plan(answers="sums", min_sites=3, label_units="raw", bound="tight")) is None


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
    assert policy.objection(make_plan(**(terms | fits))) is None
    objection = policy.objection(make_plan(**(terms | beyond)))
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
