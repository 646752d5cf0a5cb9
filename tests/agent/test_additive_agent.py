"""What an agent does under the additive objective: policy keys, ledger, model file, tables without labels."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from coreg_core.additive.question_types import Ask
from coreg_core.errors import BadData, UsageError
from coreg_core.protocol.messages import Inquiry
from site_agent.data.prepare import Inputs, prepare
from site_agent.data.tables import read_table
from site_agent.ledger import Ledger, read_ledger, recall
from site_agent.ledger.disclosures import labels_in, words
from site_agent.machine.memory import Remembered
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import row_keys
from site_agent.models.file import load_model
from site_agent.models.writer import Models
from site_agent.policy.policy import Policy, read_policy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "machine"))
from additive_tiny import EVERYTHING, additive_plan, additive_sites, private_data, undisturbed
from tiny import Pump, make_plan

ADDITIVE = Policy(answers="clear", objectives=("agreement", "additive"))


# --- policy -------------------------------------------------------------------------------------------------------


def test_the_additive_objective_has_to_be_named():
    assert "objectives" in Policy(answers="clear").objection(additive_plan())
    assert ADDITIVE.objection(additive_plan()) is None
    assert Policy(answers="clear").objection(make_plan()) is None
    assert "objectives" in Policy(answers="clear", objectives=("additive",)).objection(make_plan())


@pytest.mark.parametrize(
    ("terms", "key", "allowed"),
    [
        ({"rows": "common"}, "common_rows", {"common_rows": True}),
        ({"rows": "common", "residuals": "open"}, "open_residuals", {"common_rows": True, "open_residuals": True}),
        ({"rows": "common", "residuals": "grouped"}, "grouped_at_least", {"common_rows": True, "grouped_at_least": 3}),
        ({"max_rounds": 11}, "max_rounds", {"max_rounds": 11}),
        ({"targets": "federation"}, "disclose_target_norm", {}),
    ],
)
def test_every_new_disclosure_has_a_key_and_none_is_allowed_unless_it_says_so(terms, key, allowed):
    objectives = {"objectives": ("additive",)}
    refusing = Policy(
        answers="clear", **objectives, **({key: False} if key == "disclose_target_norm" else {"max_rounds": 10})
    )
    plan = additive_plan(**({"max_rounds": 10} | terms))
    assert key in refusing.objection(plan)
    assert Policy(answers="clear", **objectives, **({"max_rounds": 10} | allowed)).objection(plan) is None


def test_groups_are_as_large_as_the_policy_asks():
    policy = Policy(answers="clear", objectives=("additive",), common_rows=True, grouped_at_least=5)
    assert "grouped_at_least=5" in policy.objection(additive_plan(rows="common", residuals="grouped", group_size=4))
    assert policy.objection(additive_plan(rows="common", residuals="grouped", group_size=5)) is None


def test_two_labels_are_no_group(tmp_path):
    (tmp_path / "p.toml").write_text('objectives = ["additive"]\ngrouped_at_least = 2\n')
    with pytest.raises(UsageError, match="grouped_at_least"):
        read_policy(tmp_path / "p.toml")


# --- ledger -------------------------------------------------------------------------------------------------------


def ledgered(path, plan, most_bytes=1 << 26, **options):
    """A run in which site a writes its ledger, as its connection does."""
    ledger, sites = Ledger(path, most_bytes=most_bytes), additive_sites(plan, **options)
    handle, site = sites["a"].handle, sites["a"]

    def writing(message):
        answers = handle(message)
        for answer in answers:
            asked = message if isinstance(message, Inquiry) else None
            ledger.record(answer, asked, None if asked is None else site.kept(asked.run))
        return answers

    site.handle = writing
    Pump(plan, sites).join().run()
    ledger.close()
    return ledger, site


def test_labels_are_in_one_vector_a_solve_and_in_the_score(tmp_path):
    """7 at the default, and the site's own score, once; scalars are told apart."""
    ledger, site = ledgered(tmp_path / "l", additive_plan(tuning_steps=6))
    assert ledger.label_bearing.messages == 8
    told = [e for e in read_ledger(tmp_path / "l") if e["kind"] == "Share"]
    affine = [e for e in told if e["question_kind"] == "FIXED_POINT" and e["labels"] == "in the vectors"]
    assert len(affine) == 7
    assert [e["step"] for e in affine] == list(range(7))
    assert {e["question_kind"] for e in told if e["labels"] == "in the scalars"} == {"LABELS", "SPREAD", "TRACES"}
    assert all(e["what"] for e in told)
    assert site.result is not None


@pytest.mark.parametrize("most_bytes", [1 << 26, 3000], ids=["in one file", "in many"])
@pytest.mark.parametrize("residuals", ["smoothed", "grouped"])
def test_what_the_ledger_tells_is_what_the_site_remembered(tmp_path, residuals, most_bytes):
    plan = additive_plan(rows="common", residuals=residuals, landmarks=10, folds=2)
    _, site = ledgered(tmp_path / "l", plan, most_bytes, common=True)
    assert (tmp_path / "l-0001").exists() == (most_bytes == 3000)
    assert recall(tmp_path / "l", plan, "ids") == site.runs[plan.run].remembered


def test_groups_that_went_out_are_remembered_by_every_plan_and_name_no_row(tmp_path):
    plan = additive_plan(rows="common", residuals="grouped")
    ledgered(tmp_path / "l", plan, common=True)
    written = [entry["groups"] for entry in read_ledger(tmp_path / "l") if "groups" in entry]
    assert len(written) == 1, "with the first answer that tells their means, and once"
    keys = sorted(key for group in written[0] for key in group)
    data = private_data("a", common=True)
    assert keys == sorted(data.row_keys)
    other = additive_plan(run="run-2", group_size=4, rows="common", residuals="grouped")
    known = recall(tmp_path / "l", other, "other ids")
    assert known == Remembered(groups=frozenset(map(tuple, written[0])), residuals="grouped")
    site = Site("a", data, Terms(recall=lambda *_: known, residuals=EVERYTHING))
    [refusal] = site.handle(other)
    assert "went out in other groups before" in refusal.reason


def test_a_labels_name_is_its_ids_its_values_and_the_sites_secrets():
    names = [
        row_keys(["p1"], np.array([1.5]), b"salt"),
        row_keys(["p2"], np.array([1.5]), b"salt"),
        row_keys(["p1"], np.array([1.6]), b"salt"),
        row_keys(["p1"], np.array([1.5]), b"pepper"),
    ]
    assert len(set(names)) == 4
    assert row_keys(["p1"], np.array([1.5]), b"salt") == names[0]


@pytest.mark.parametrize("residuals", ["grouped", "open"])
def test_the_ledger_says_what_grouped_and_open_residuals_tell(tmp_path, residuals):
    plan = additive_plan(rows="common", residuals=residuals)
    ledgered(tmp_path / "l", plan, common=True)
    told = [entry for entry in read_ledger(tmp_path / "l") if entry["kind"] == "Share"]
    affine = [entry for entry in told if entry["question_kind"] == "FIXED_POINT" and entry["part"] == "affine"]
    assert len(affine) == 3
    word = "group means" if residuals == "grouped" else "every label can be computed"
    assert all(word in entry["what"] and entry["labels"] == "in the vectors" for entry in affine)
    assert all("labelled" in entry["what"] for entry in told if entry["question_kind"] == "SMOOTHER")
    assert not any("smoothed" in entry["what"] for entry in told)


def test_every_kind_of_question_has_its_words():
    for kind in Ask:
        for part in ("affine", "linear"):
            inquiry = Inquiry("r", 0, 0, kind, part, 0, (), (), None)
            assert len(words(inquiry)) > 20
            assert labels_in(inquiry) in ("none", "in the scalars", "in the vectors")
    assert labels_in(Inquiry("r", 0, 0, Ask.FIXED_POINT, "linear", 0, (), (), None)) == "none"


# --- tables and model files ---------------------------------------------------------------------------------------


def table(path, data, *, labels=True):
    rows = ["id,p,q" + (",y" if labels else "")]
    for i, z in enumerate(data.Z):
        rows.append(f"z{i:02d},{z[0]!r},{z[1]!r}" + ("," if labels else ""))
    if labels:
        rows += [f"x{i:02d},{x[0]!r},{x[1]!r},{y!r}" for i, (x, y) in enumerate(zip(data.X, data.y, strict=True))]
    path.write_text("\n".join(rows).replace("np.float64(", "").replace(")", "") + "\n")
    return path


def test_a_table_without_labels_has_to_say_so(tmp_path):
    path = table(tmp_path / "t.csv", private_data("a", 0))
    with pytest.raises(BadData, match="--no-labels"):
        prepare(Inputs(path, "y", "id"))
    without = prepare(Inputs(path, "y", "id", labels=False))
    assert without.data.X.shape == (0, 2)
    assert without.data.Z.shape == (30, 2)
    bare = prepare(Inputs(table(tmp_path / "bare.csv", private_data("a", 0), labels=False), "y", "id", labels=False))
    assert bare.data.ids_digest == without.data.ids_digest
    with pytest.raises(BadData, match="--no-labels says that none has"):
        prepare(Inputs(table(tmp_path / "some.csv", private_data("a", 3)), "y", "id", labels=False))


def test_the_agreement_refuses_a_site_without_labels_in_words():
    plan = make_plan()
    [refusal] = Site("a", private_data("a", 0), Terms()).handle(plan)
    assert "additive objective takes it" in refusal.reason


def test_labelled_rows_are_found_among_the_shared_ones_by_id(tmp_path):
    data = private_data("a", 4)
    shared = table(tmp_path / "shared.csv", data, labels=False)
    own = tmp_path / "own.csv"
    own.write_text("id,p,q,y\nz07,1,2,3\nz03,4,5,6\n")
    assert prepare(Inputs(own, "y", "id", unlabelled=shared)).data.positions.tolist() == [7, 3]
    own.write_text("id,p,q,y\nz07,1,2,3\nother,4,5,6\n")
    assert prepare(Inputs(own, "y", "id", unlabelled=shared)).data.positions is None


def test_the_model_file_predicts_alone_and_says_of_what_it_came(tmp_path):
    plan = additive_plan()
    path = table(tmp_path / "t.csv", private_data("a"))
    prepared = prepare(Inputs(path, "y", "id"))
    sites = additive_sites(plan)
    sites["a"] = Site("a", prepared.data)
    pump = (
        Pump(
            plan,
            {
                name: Site(name, prepare(Inputs(table(tmp_path / f"{name}.csv", private_data(name)), "y", "id")).data)
                for name in plan.sites
            },
        )
        .join()
        .run()
    )
    result = pump.sites["a"].result
    assert result is not None
    assert result.additive is not None
    notes = []
    models = Models("a", prepared, "y", tmp_path / "a.model", tmp_path / "alone.model")
    written = models.write(result, notes.append)
    assert written == (tmp_path / "a.model", tmp_path / "alone.model")
    assert any("label noise" in note for note in notes)
    loaded = load_model(tmp_path / "a.model")
    assert (loaded.objective, loaded.plan["objective"]["name"], loaded.coupling) == ("additive", "additive", None)
    rows = read_table(path)
    np.testing.assert_array_equal(
        loaded.predict(rows), result.additive.own.predict(prepared.preprocessing.transform(rows))
    )
    assert load_model(written[1]).predict(rows) != pytest.approx(loaded.predict(rows))
    raw = (tmp_path / "a.model").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    assert header["format"] == "coreg-model/4"
    assert "rows of the site's own data" in header["warning"]
    (tmp_path / "a.model").write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(BadData, match="damaged"):
        load_model(tmp_path / "a.model")


def test_a_run_without_a_model_writes_none(tmp_path):
    pump = undisturbed(additive_plan(), dict.fromkeys("abc", 0))
    prepared = prepare(Inputs(table(tmp_path / "t.csv", private_data("a")), "y", "id"))
    result = pump.sites["a"].result
    assert result is not None
    assert Models("a", prepared, "y", tmp_path / "m", None).write(result, print) == ()
