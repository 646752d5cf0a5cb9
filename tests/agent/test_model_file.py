"""The model file: the same bits after a round trip, files that hold records, files that are refused, whole writes."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from agent_files import fitted, table
from numpy.testing import assert_allclose, assert_array_equal
from safetensors import safe_open

from coreg_core.additive.model.expansion import Expansion
from coreg_core.additive.model.features import Standardiser
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData, StorageError
from coreg_core.kernels.functions import Gaussian, Laplacian, Linear, Polynomial
from site_agent.data.tables import read_table
from site_agent.models.file import FORMAT, Joint, SiteModel, contains_records, load_model, save_model
from site_agent.models.predictions import write_predictions

TABLE = "id,a,c,y\n1,1.5,x,1\n2,2,z,2\n3,4,x,\n"
WEIGHTS = KernelExpansion(Linear(), np.eye(3), np.array([0.5, -1.0, 2.0]))  # three features: a, c=x, c=z
PLAIN, SHIFTED = Standardiser(np.zeros(3), np.ones(3)), Standardiser(np.full(3, 0.1), np.full(3, 0.7))
GAUSSIAN = Gaussian(1.5)


def site_model(folder, made_of=GAUSSIAN, **changes):
    """A model of two labelled rows under a kernel, or of a function of the features."""
    preprocessing, found = fitted(folder, TABLE)
    if not isinstance(made_of, KernelExpansion | Expansion):
        made_of = KernelExpansion(made_of, preprocessing.transform(found.labelled), np.array([0.3, -1.7]))
    known = {"shift": 10.0, "divisor": 2.0, "site": "north", "run": "r1", "stop": "CONVERGED", "coupling": 0.1}
    return SiteModel(made_of, preprocessing, "y", plan={"seed": 0, "kernel": "gaussian"}, **known | changes)


def saved(folder, *made_of, **changes):
    save_model(folder / "m", site_model(folder, *made_of, **changes))
    return folder / "m"


def header(path):
    with safe_open(path, framework="numpy") as opened:
        return opened.metadata()


@pytest.mark.parametrize(
    ("made_of", "records"),
    [
        pytest.param(Gaussian(1.5), True, id="gaussian"),
        pytest.param(Laplacian(2.0), True, id="laplacian"),
        pytest.param(Polynomial(2, 1.0, 3.0), True, id="polynomial"),
        pytest.param(Linear(), True, id="linear over rows"),
        pytest.param(WEIGHTS, False, id="linear over features"),
        pytest.param(KernelExpansion(Gaussian(1.0), np.eye(3), np.ones(3)), True, id="gaussian at unit rows"),
    ],
)
def test_a_round_trip_keeps_every_bit_and_the_file_says_whether_it_holds_records(tmp_path, made_of, records):
    model, path = site_model(tmp_path, made_of), tmp_path / "m"
    save_model(path, model)
    again, rows = load_model(path), read_table(tmp_path / "t.csv")
    assert again.predict(rows).tobytes() == model.predict(rows).tobytes()
    own_units = model.function.predict(model.preprocessing.transform(rows)) * 2.0 + 10.0
    assert again.predict(rows).tolist() == own_units.tolist()
    assert dataclasses.replace(again, function=model.function, preprocessing=model.preprocessing) == model
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    told = header(path)
    assert contains_records(model.function) is json.loads(told["model"])["contains_records"] is records
    for words in ("the site's own", "never on a shared volume"):
        assert (words in told.get("warning", "")) is records


def test_a_prediction_is_in_the_targets_own_units(tmp_path):
    found = load_model(saved(tmp_path)).predict(table(tmp_path, "c,a\nz,2\nunseen,1.75\n\n"))
    # By hand: a is (a − 1.75)/0.25, so the points are (−1, 1, 0) and (1, 0, 1); the rows (1, 0, 1) and (0, 0, 0).
    k = np.exp(-np.array([[6.0, 0.0], [2.0, 2.0]]) / 1.5)
    assert_allclose(found, (k @ [0.3, -1.7]) * 2.0 + 10.0, rtol=1e-14)
    assert found.shape == (2,)  # the blank line at the end is no record


def test_the_part_of_an_additive_model_keeps_its_bits_and_the_model_alone_has_none(tmp_path):
    own, part = Expansion(PLAIN, 1.0, (WEIGHTS,)), Expansion(SHIFTED, -0.25, (WEIGHTS,))
    units = {"shift": 0.0, "divisor": 1.0}
    found = load_model(saved(tmp_path, own, joint=Joint(part, 5.5), mean_on_shared=0.0, **units))
    rows = read_table(tmp_path / "t.csv")
    assert (found.objective, found.intercept, found.mean_on_shared) == ("additive", 5.5, 0.0)
    assert_array_equal(found.part(rows), part.predict(found.preprocessing.transform(rows)))
    alone = load_model(saved(tmp_path, own, **units))
    assert_array_equal(alone.predict(rows), found.predict(rows))
    assert (alone.found, alone.joint, alone.intervals) == (None, None, None)
    with pytest.raises(BadData, match="has no part"):
        alone.part(rows)


# --- what is refused ----------------------------------------------------------------------------------------------


def test_a_change_of_any_byte_is_refused_or_changes_no_prediction(tmp_path):
    path, refused = saved(tmp_path), 0
    rows, whole = read_table(tmp_path / "t.csv"), path.read_bytes()
    expected = load_model(path).predict(rows).tobytes()
    for at in range(0, len(whole), 41):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            again = load_model(path).predict(rows)
        except (BadData, StorageError):
            refused += 1
        else:  # the warning for people stands outside the checksum: whatever loads still predicts the same bits
            assert again.tobytes() == expected
    assert refused > len(whole) // 41 // 2
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadData):
        load_model(path)
    path.write_bytes(whole.replace(FORMAT.encode(), b"coreg-model/9"))
    with pytest.raises(BadData, match=rf"coreg-model/9', but this version reads {FORMAT}"):
        load_model(path)


def rewritten(path, *, arrays=None, metadata=None):
    """The file with some arrays or metadata exchanged, well-formed as safetensors."""
    with safe_open(path, framework="numpy") as opened:
        kept = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    path.write_bytes(safetensors.numpy.save(kept | (arrays or {}), metadata=header(path) | (metadata or {})))


def test_every_part_stands_under_the_checksum(tmp_path):
    path = saved(tmp_path)
    whole, text = path.read_bytes(), header(path)["model"]
    meta = json.loads(text)
    changes = [{"arrays": {"coef": np.array([0.3, -1.6])}}, {"arrays": {"extra": np.zeros(1)}}]
    changes += [{"arrays": {"points": np.zeros((2, 3))}}, {"metadata": {"sha256": "0" * 64}}]
    changes += [{"metadata": {"model": json.dumps(meta | {name: None}, sort_keys=True)}} for name in meta]
    for change in changes:
        path.write_bytes(whole)
        rewritten(path, **change)
        with pytest.raises(BadData, match="the checksum is wrong"):
            load_model(path)
    path.write_bytes(whole)
    rewritten(path, metadata={"model": text})  # and the tool itself changes nothing
    assert load_model(path).site == "north"


def test_files_that_are_no_model_are_refused(tmp_path):
    path = tmp_path / "m"
    for data in (b"", b"id,a,y\n1,2,3\n", b"\x80\x04N." * 9):
        path.write_bytes(data)
        with pytest.raises(BadData, match="not a model file"):
            load_model(path)
    path.write_bytes(safetensors.numpy.save({"weights": np.zeros(3)}))
    with pytest.raises(BadData, match=f"this version reads {FORMAT}"):
        load_model(path)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(StorageError, match="no such model file"):
            load_model(missing)
    with pytest.raises(StorageError, match="cannot be written"):
        save_model(tmp_path / "none" / "m", site_model(tmp_path))


# --- writing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing, error):
    path = saved(tmp_path)
    before, files = path.read_bytes(), sorted(p.name for p in tmp_path.iterdir())

    def fail(*_):
        raise error

    monkeypatch.setattr(*((os, "fsync") if failing == "fsync" else (Path, "replace")), fail)
    with pytest.raises(StorageError if isinstance(error, OSError) else KeyboardInterrupt):
        saved(tmp_path, site="south")
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == files


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("ids", [{}, {"ids": ["007", "b", "c"], "id_column": "patient"}], ids=["without ids", "ids"])
def test_predictions_keep_bits_and_ids_and_are_for_their_owner_alone(tmp_path, suffix, ids):
    path, values = tmp_path / f"p.{suffix}", np.array([1 / 3, -2.0, 5e-324])
    write_predictions(path, values, **ids)
    found = read_table(path)
    assert found.columns == [*(["patient"] if ids else []), "prediction"]
    assert not ids or found.ids("patient") == ids["ids"]
    assert found.numbers("prediction").tobytes() == values.tobytes()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)  # somebody opened it to a group, on purpose
    write_predictions(path, np.ones(3), **ids)
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_table(path).numbers("prediction").tolist() == [1.0, 1.0, 1.0]
