"""A column of weights: read and checked with the table, and refused by the training."""

import numpy as np
import pytest
from agent_files import prepared, write
from machine.tiny import make_plan, private_data, sealed
from numpy.testing import assert_array_equal

from site_agent.data.errors import BadTable
from site_agent.machine.operators import operator_of
from site_agent.policy.guards import rehearse
from site_agent.policy.policy import Policy

SITES = ("a", "b", "c")
TABLE = "id,x,w,y\n1,0.5,2,1\n2,1.5,,\n3,2.5,0.5,3\n4,3.5,1,2\n5,4.5,,\n"


def test_the_column_is_no_feature_and_only_labelled_rows_need_a_weight(tmp_path):
    made = prepared(write(tmp_path, TABLE), weight="w")
    assert list(made.preprocessing.sources) == ["x"]
    assert_array_equal(made.data.weights, [2.0, 0.5, 1.0])
    assert prepared(write(tmp_path, TABLE.replace("w,", "w2,")), drop=("w2",)).data.weights is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0.5,2,1", "0.5,,1", "line 2, column 'w': a labelled row needs a weight above 0"),
        ("0.5,2,1", "0.5,-1,1", "line 2, column 'w': a labelled row needs a weight above 0"),
        ("2.5,0.5,3", "2.5,much,3", "line 4, column 'w': 'much' is not a finite number"),
        ("id,x,w,y", "id,x,W1,y", "no column 'w' .the weights.. Did you mean"),
    ],
)
def test_a_bad_weight_names_its_place(tmp_path, old, new, words):
    with pytest.raises(BadTable, match=words):
        prepared(write(tmp_path, TABLE.replace(old, new)), weight="w")


def test_the_column_is_neither_the_target_nor_the_id_and_a_site_without_labels_has_no_weights(tmp_path):
    for column in ("y", "id"):
        with pytest.raises(BadTable, match="is both the weight and the target or the id"):
            prepared(write(tmp_path, TABLE), weight=column)
    empty = "id,x,w,y\n1,0.5,2,\n2,1.5,,\n"
    assert prepared(write(tmp_path, empty), weight="w", labels=False).data.weights is None


def test_a_training_refuses_weights_and_another_weight_is_another_operator(tmp_path):
    plan = sealed(make_plan())
    data, plain = private_data("a"), private_data("a")
    object.__setattr__(data, "weights", np.arange(1.0, 5.0))
    policy = Policy(peers={name: name * 64 for name in SITES}, members_may_learn="operators")
    reasons = rehearse(plan, "a", policy, data, tmp_path / "ledger.jsonl").reasons
    assert any("rows have weights, which no objective takes" in reason for reason in reasons)
    assert operator_of(plan, data, SITES).digest != operator_of(plan, plain, SITES).digest
