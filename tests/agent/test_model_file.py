"""The model file: which files say that they hold records, which are refused, and that none is ever half written.

The round trip's bits and damage byte by byte stand in test_model_and_ledger.py.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from safetensors import safe_open

from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.kernels.functions import Gaussian, Laplacian, Linear, Polynomial
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.shared_set import load_site_tables
from site_agent.data.tables import read_table
from site_agent.models import file
from site_agent.models.file import SiteModel, contains_records, load_model, save_model, write_predictions

TABLE = "id,a,c,y\n1,1.5,x,1\n2,2,z,2\n3,4,x,\n"
WEIGHTS = KernelExpansion(Linear(), np.eye(3), np.array([0.5, -1.0, 2.0]))  # three features: a, c=x, c=z


def site_model(folder, function=None, kernel=None, **changes):
    (folder / "t.csv").write_text(TABLE)
    table = load_site_tables(folder / "t.csv", "y", "id")
    preprocessing = Preprocessing.fit(table)
    if function is None:
        points = preprocessing.transform(table.labelled)
        function = KernelExpansion(kernel or Gaussian(1.5), points, np.array([0.3, -1.7]))
    known = {"shift": 10.0, "divisor": 2.0, "site": "north", "run": "r1", "stop": "CONVERGED", "coupling": 0.1}
    return SiteModel(function, preprocessing, "y", plan={"seed": 0, "kernel": "gaussian"}, **known | changes)


def header(path):
    with safe_open(path, framework="numpy") as file:
        return file.metadata()


def test_a_prediction_is_in_the_targets_own_units(tmp_path):
    save_model(tmp_path / "m", site_model(tmp_path))
    (tmp_path / "new.csv").write_text("c,a\nz,2\nunseen,1.75\n\n")
    found = load_model(tmp_path / "m").predict(read_table(tmp_path / "new.csv"))
    # By hand: a is (a − 1.75)/0.25, so the points are (−1, 1, 0) and (1, 0, 1); the rows (1, 0, 1) and (0, 0, 0).
    k = np.exp(-np.array([[6.0, 0.0], [2.0, 2.0]]) / 1.5)
    assert_allclose(found, (k @ [0.3, -1.7]) * 2.0 + 10.0, rtol=1e-14)
    assert found.shape == (2,)  # the blank line at the end is no record


@pytest.mark.parametrize(
    ("function", "records"),
    [
        *[(k, True) for k in (Gaussian(1.5), Laplacian(2.0), Polynomial(2, 1.0, 3.0), Linear())],
        (WEIGHTS, False),
        (KernelExpansion(Gaussian(1.0), np.eye(3), np.ones(3)), True),
    ],
    ids=["gaussian", "laplacian", "polynomial", "linear over rows", "linear over features", "gaussian at unit rows"],
)
def test_a_file_says_whether_it_holds_records(tmp_path, function, records):
    model = (
        site_model(tmp_path, function)
        if isinstance(function, KernelExpansion)
        else site_model(tmp_path, None, function)
    )
    save_model(tmp_path / "m", model)
    said = header(tmp_path / "m")
    assert contains_records(model.function) is records
    assert json.loads(said["model"])["contains_records"] is records
    assert ("the site's own" in said.get("warning", "")) is records
    assert ("never on a shared volume" in said.get("warning", "")) is records


def test_weights_on_features_come_back(tmp_path):
    save_model(tmp_path / "m", site_model(tmp_path, WEIGHTS))
    loaded = load_model(tmp_path / "m")
    X = loaded.preprocessing.transform(read_table(tmp_path / "t.csv"))
    assert loaded.predict(read_table(tmp_path / "t.csv")).tolist() == (X @ WEIGHTS.coef * 2.0 + 10.0).tolist()


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=2, max_size=2), FINITE, FINITE, FINITE)
def test_every_number_comes_back_to_the_bit(tmp_path_factory, coef, shift, scale, coupling):
    folder = tmp_path_factory.mktemp("m")
    model = site_model(folder, shift=shift, divisor=scale, coupling=coupling)
    model.function.coef[:] = coef
    save_model(folder / "m", model)
    again = load_model(folder / "m")
    for name in ("points", "coef"):
        assert getattr(again.function, name).tobytes() == getattr(model.function, name).tobytes()
    assert again.function.kernel == model.function.kernel
    numbers = np.array([[m.shift, m.divisor, m.coupling] for m in (model, again)])
    assert numbers[0].tobytes() == numbers[1].tobytes()
    assert (again.plan, again.stop, again.site, again.run) == (model.plan, "CONVERGED", "north", "r1")


def rewritten(path, *, arrays=None, metadata=None):
    """The file with some arrays or metadata exchanged, well-formed as safetensors."""
    with safe_open(path, framework="numpy") as file:
        kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    path.write_bytes(safetensors.numpy.save(kept | (arrays or {}), metadata=header(path) | (metadata or {})))


def test_every_part_stands_under_the_checksum(tmp_path):
    path = tmp_path / "m"
    save_model(path, site_model(tmp_path))
    whole, text = path.read_bytes(), header(path)["model"]
    meta = json.loads(text)
    changes = [{"arrays": {"coef": np.array([0.3, -1.6])}}, {"arrays": {"extra": np.zeros(1)}}]
    changes += [{"arrays": {"points": np.zeros((2, 3))}}, {"metadata": {"sha256": "0" * 64}}]
    changes += [{"metadata": {"model": json.dumps(meta | {name: None}, sort_keys=True)}} for name in meta]
    for change in changes:
        path.write_bytes(whole)
        rewritten(path, **change)
        with pytest.raises(BadData, match="checksum does not fit"):
            load_model(path)
    path.write_bytes(whole)
    rewritten(path, metadata={"model": text})  # and the tool itself changes nothing
    assert load_model(path).site == "north"


@pytest.mark.parametrize("lost", ["kernel", "preprocessing", "shift", "plan"])
def test_a_part_that_is_not_there_although_the_checksum_fits(tmp_path, lost):
    path = tmp_path / "m"
    model = site_model(tmp_path)
    save_model(path, model)
    meta = json.loads(header(path)["model"])
    del meta[lost]
    text = json.dumps(meta)
    arrays = {"points": model.function.points, "coef": model.function.coef}
    rewritten(path, metadata={"model": text, "sha256": file._checksum(arrays, text)})
    with pytest.raises(BadData, match=lost):
        load_model(path)


def test_files_that_are_no_model(tmp_path):
    path = tmp_path / "m"
    for data in (b"", b"id,a,y\n1,2,3\n", b"\x80\x04N." * 9):
        path.write_bytes(data)
        with pytest.raises(BadData, match="not a model file"):
            load_model(path)
    path.write_bytes(safetensors.numpy.save({"weights": np.zeros(3)}))
    with pytest.raises(BadData, match="this version reads coreg-model/1, coreg-model/2"):
        load_model(path)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(StorageError, match="no such model file"):
            load_model(missing)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing, error):
    path = tmp_path / "m"
    save_model(path, site_model(tmp_path))
    before, files = path.read_bytes(), sorted(p.name for p in tmp_path.iterdir())

    def fail(*_):
        raise error

    if failing == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    expected = StorageError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        save_model(path, site_model(tmp_path, site="south"))
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == files


def test_a_file_that_all_could_read_is_private_once_written_over(tmp_path):
    path = tmp_path / "m"
    path.write_text("old")
    path.chmod(0o644)
    save_model(path, site_model(tmp_path))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_predictions_without_ids(tmp_path, suffix):
    path = tmp_path / f"p.{suffix}"
    values = np.array([1 / 3, -2.0, 5e-324])
    write_predictions(path, values)
    table = read_table(path)
    assert table.columns == ["prediction"]
    assert table.numbers("prediction").tobytes() == values.tobytes()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_predictions_are_about_people_so_a_new_file_is_private_and_an_old_one_keeps_its_mode(tmp_path, suffix):
    path = tmp_path / f"p.{suffix}"
    write_predictions(path, np.zeros(2))
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)  # somebody opened it to a group, on purpose
    write_predictions(path, np.ones(2))
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_table(path).numbers("prediction").tolist() == [1.0, 1.0]


def test_predictions_that_would_not_tell_whose_they_are(tmp_path):
    with pytest.raises(UsageError, match="1 ids for 2 predictions"):
        write_predictions(tmp_path / "p.csv", np.zeros(2), ids=["a"], id_column="id")
    with pytest.raises(UsageError, match="rename it"):
        write_predictions(tmp_path / "p.csv", np.zeros(1), ids=["a"], id_column="prediction")
    assert not (tmp_path / "p.csv").exists()
