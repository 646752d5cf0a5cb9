"""What a site keeps: its model, its ledger, its policy."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from coreg_core.agreement.columns import Column
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.kernels.functions import Gaussian, Laplacian, Linear, Polynomial
from coreg_core.protocol.messages import Ask, Hello, Leaving, Prediction, Vector
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.shared_set import load_site_tables
from site_agent.data.tables import read_table
from site_agent.ledger import Ledger, read_ledger
from site_agent.models.file import SiteModel, contains_records, load_model, save_model, write_predictions
from site_agent.policy.policy import Policy, read_policy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "machine"))

KERNELS = (Gaussian(1.5), Laplacian(0.7), Polynomial(2, 1.0, 3.0), Linear())


def model_of(folder, kernel):
    path = folder / "t.csv"
    path.write_text("id,a,c,y\n1,1.5,x,1\n2,2,z,2\n3,4,x,\n")
    table = load_site_tables(path, "y", "id")
    preprocessing = Preprocessing.fit(table)
    points = preprocessing.transform(table.labelled)
    function = KernelExpansion(kernel, points, np.array([0.3, -1.7]))
    return SiteModel(function, preprocessing, "y", 10.0, 2.0, "north", "r", "CONVERGED", 0.1, {"seed": 0}), read_table(
        path
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
def test_a_model_predicts_the_same_bits_after_a_round_trip(tmp_path, kernel):
    model, table = model_of(tmp_path, kernel)
    path = tmp_path / "north.model"
    save_model(path, model)
    again = load_model(path)
    assert again.predict(table).tobytes() == model.predict(table).tobytes()
    own_units = model.function.predict(model.preprocessing.transform(table)) * 2.0 + 10.0
    assert again.predict(table).tolist() == own_units.tolist()
    assert dataclasses.replace(again, function=model.function, preprocessing=model.preprocessing) == model
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    with safe_open(path, framework="numpy") as file:
        assert json.loads(file.metadata()["model"])["contains_records"] is contains_records(model.function) is True


def test_a_changed_model_is_refused_wherever_it_was_changed(tmp_path):
    model, table = model_of(tmp_path, Gaussian(1.0))
    path, refused = tmp_path / "m", 0
    save_model(path, model)
    whole, expected = path.read_bytes(), model.predict(table).tobytes()
    for at in range(0, len(whole), 41):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            again = load_model(path).predict(table)
        except (BadData, StorageError):
            refused += 1
        else:  # the warning for people stands outside the checksum: whatever loads still predicts the same bits
            assert again.tobytes() == expected
    assert refused > len(whole) // 41 // 2
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadData):
        load_model(path)
    path.write_bytes(whole.replace(b"coreg-model/2", b"coreg-model/9"))
    with pytest.raises(BadData, match="coreg-model/9"):
        load_model(path)


def test_places_that_cannot_be_written(tmp_path):
    model, _ = model_of(tmp_path, Gaussian(1.0))
    with pytest.raises(StorageError, match="cannot be written"):
        save_model(tmp_path / "none" / "m", model)
    with pytest.raises(UsageError, match=r"\.csv or \.parquet"):
        write_predictions(tmp_path / "p.txt", np.zeros(2))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_predictions_are_written_with_their_ids(tmp_path, suffix):
    path = tmp_path / f"p.{suffix}"
    write_predictions(path, np.array([0.1, 1 / 3]), ids=["007", "b"], id_column="patient")
    table = read_table(path)
    assert table.columns == ["patient", "prediction"]
    assert table.ids("patient") == ["007", "b"]
    assert table.numbers("prediction").tolist() == [0.1, 1 / 3]


def entries(path, count=4):
    ledger = Ledger(path)
    ledger.record(Hello("north", 2, "test"))
    for i in range(count - 2):
        ask = Ask("r", i, 0, "affine" if i == 0 else "linear", (Column(0.5, 3.0),), i == 0, Vector(np.zeros((3, 1))))
        ledger.record(Prediction("r", i, 0, Vector(np.full((3, 1), float(i)))), ask)
    ledger.record(Leaving("over"))
    ledger.close()
    return ledger


def test_the_ledger_tells_what_left(tmp_path):
    path = tmp_path / "l"
    ledger = entries(path)
    told = list(read_ledger(path))
    assert [e["kind"] for e in told] == ["Hello", "Prediction", "Prediction", "Leaving"]
    assert [e.get("part") for e in told] == [None, "affine", "linear", None]
    assert [e.get("verifies") for e in told] == [None, True, False, None]
    assert told[2]["sha256"] == Vector(np.full((3, 1), 1.0)).digest
    assert ledger.sent["Prediction"].numbers == 6
    assert path.stat().st_mode & 0o777 == 0o600
    entries(path)  # another session goes on with the same chain
    assert len(list(read_ledger(path))) == 8


@pytest.mark.parametrize("change", ["edit", "remove", "insert", "swap"])
def test_a_changed_ledger_is_found(tmp_path, change):
    path = tmp_path / "l"
    entries(path)
    lines = path.read_bytes().splitlines(keepends=True)
    match change:
        case "edit":
            lines[1] = lines[1].replace(b'"numbers": 3', b'"numbers": 4')
        case "remove":
            del lines[1]
        case "insert":
            lines.insert(2, lines[1])
        case "swap":
            lines[1], lines[2] = lines[2], lines[1]
    path.write_bytes(b"".join(lines))
    with pytest.raises(StorageError, match="line"):
        list(read_ledger(path))


def test_a_line_torn_by_a_crash_is_survived_and_shown(tmp_path):
    path = tmp_path / "l"
    entries(path)
    path.write_bytes(path.read_bytes()[:-20])
    entries(path)  # the agent starts and writes on
    told = list(read_ledger(path))
    assert [e["line"] for e in told if e["kind"] == "torn"] == [4]
    assert len(told) == 4 + 4, "what came after it is read, and chained to it as it stands"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"another tear\n", *lines[4:]]))
    with pytest.raises(StorageError, match="line 5: the chain is broken"):
        list(read_ledger(path))


def test_a_policy_refuses_by_key(tmp_path):
    from tiny import make_plan

    plan = make_plan()
    assert Policy(answers="clear").objection(plan) is None
    refusals = {
        "max_rounds": make_plan(max_rounds=10**6),
        "min_sites": make_plan(min_sites=1),
        "coupling_max": make_plan(coupling=(0.1, 1e4)),
        "most_threads": make_plan(threads=65),
    }
    for key, asked in refusals.items():
        assert key in (Policy(answers="clear").objection(asked) or ""), key
    assert "most_couplings" in (
        Policy(answers="clear", most_couplings=63).objection(make_plan(coupling=(0.1,) * 64)) or ""
    )
    secret = Policy(answers="clear", disclose_target_norm=False, disclose_bound="a-priori")
    said = secret.objection(make_plan(label_units="centred", bound="tight")) or ""
    assert "disclose_target_norm" in said
    assert "disclose_bound" in said
    assert secret.objection(make_plan(label_units="standardised", bound="a-priori")) is None
    path = tmp_path / "policy.toml"
    path.write_text("coupling_maximum = 3\n")
    with pytest.raises(UsageError, match="coupling_maximum"):
        read_policy(path)
