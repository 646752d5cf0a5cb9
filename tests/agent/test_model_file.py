"""The model file: the same bits after a round trip, files that hold records, files that are
refused, whole writes.
"""

import csv
import dataclasses
import io
import json
import re

import numpy as np
import polars as pl
import pytest
import safetensors.numpy
from agent_files import fitted
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from safetensors import safe_open
from trained_sites import SITES

from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.kernels import Gaussian, Linear
from site_agent.data.cell_text import guarded, texts_of_column, unguarded
from site_agent.data.sources import NA_VALUES
from site_agent.data.tables import read_table
from site_agent.models.batch import write_predictions
from site_agent.models.file import (
    FORMAT,
    ModelFile,
    checksum,
    contains_records,
    load_model,
    save_model,
)

TABLE = "id,a,c,y\n1,1.5,x,1\n2,2,z,2\n3,4,x,\n"
WEIGHTS = KernelExpansion(
    Linear(), np.eye(3), np.array([0.5, -1.0, 2.0])
)  # three features: a, c=x, c=z
GAUSSIAN = Gaussian(1.5)


def site_model(folder, made_of=GAUSSIAN, **changes):
    """A model of two labelled rows under a kernel, or of weights of the features."""
    preprocessing, found = fitted(folder, TABLE)
    if not isinstance(made_of, KernelExpansion):
        made_of = KernelExpansion(
            made_of, preprocessing.transform(found.labelled), np.array([0.3, -1.7])
        )
    known = {
        "shift": 10.0,
        "divisor": 2.0,
        "site": "north",
        "run": "r1",
        "stop": "CONVERGED",
        "coupling": 0.1,
    }
    known |= {"name": "these sums", "sites": ("north", "south")}
    return ModelFile(
        made_of, preprocessing, "y", plan={"seed": 0, "kernel": "gaussian"}, **known | changes
    )


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
        pytest.param(Linear(), True, id="linear over rows"),
        pytest.param(WEIGHTS, False, id="linear over features"),
        pytest.param(
            KernelExpansion(Gaussian(1.0), np.eye(3), np.ones(3)), True, id="gaussian at unit rows"
        ),
    ],
)
def test_a_round_trip_keeps_every_bit_and_the_file_says_whether_it_holds_records(
    tmp_path, made_of, records
):
    model = site_model(tmp_path, made_of)
    path = tmp_path / "m"
    save_model(path, model)
    again = load_model(path)
    rows = read_table(tmp_path / "t.csv")
    assert again.predict(rows).tobytes() == model.predict(rows).tobytes()
    own_units = model.function.predict(model.preprocessing.transform(rows)) * 2.0 + 10.0
    assert again.predict(rows).tolist() == own_units.tolist()
    assert (
        dataclasses.replace(again, function=model.function, preprocessing=model.preprocessing)
        == model
    )
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    expected = (0.75, 2.75, 3)  # 1.75 ± 4 · 0.25
    if records:
        expected = (1.5, 4.0, 3)
    assert again.preprocessing.ranges == {"a": expected}
    told = header(path)
    assert (
        contains_records(model.function) is json.loads(told["model"])["contains_records"] is records
    )
    assert ("the site's own data" in told.get("warning", "")) is records


# --- all that a site owns after an additive training ----------------------------------------------


@pytest.mark.parametrize(
    ("name", "site", "forest", "alone"),
    [
        ("gaussian", "a", True, True),
        ("gaussian", "b", False, True),  # too few labels for a forest
        ("linear", "a", False, True),
        ("linear", "c", False, False),  # too few labels for a local model
        ("noisy", "a", True, True),
    ],
)
def test_everything_that_a_site_owns_predicts_the_same_bits_again(
    federations, name, site, forest, alone
):
    federation = federations[name]
    paths, _ = federation.write(site)
    model = federation.results[site].model
    rows = read_table(federation.folder / f"{site}-judged.csv")
    joined = load_model(paths[0])
    X = federation.prepared[site].preprocessing.transform(rows)
    assert joined.objective == "additive"
    assert joined.name == "these sums"
    assert joined.sites == SITES
    assert joined.intercept == model.score_intercept
    assert joined.predict(rows).tobytes() == model.predict(X).tobytes()
    assert joined.phi(rows).tobytes() == model.phi(X).tobytes()
    again = joined.function
    there = [SITES.index(site)]
    assert (
        again.part(joined.phi(rows), there).tobytes() == model.part(model.phi(X), there).tobytes()
    )
    assert again.weights.missing_variance(there) == model.weights.missing_variance(there)
    assert again.deviations(X).tobytes() == model.deviations(X).tobytes()
    assert again.score(X[:, 0], X).tobytes() == model.score(X[:, 0], X).tobytes()
    records = name != "linear"
    assert [contains_records(joined.function), "warning" in header(paths[0])] == [records] * 2
    assert (
        joined.preprocessing.ranges == federation.prepared[site].preprocessing.ranges
    ) == records
    assert len(paths) == 1 + alone
    if not alone:
        assert model.local is None
        assert joined.function.local is None
        return
    local = load_model(paths[1])
    assert (local.function.forest is not None) == forest
    assert local.objective == "additive"
    assert local.findings is None
    assert local.predict(rows).tobytes() == model.local.predict(X).tobytes()
    assert local.function.left_out.tobytes() == model.local.left_out.tobytes()
    with pytest.raises(BadData, match="has no part"):
        local.phi(rows)
    with pytest.raises(BadData, match=r"no values for intervals\. Name the joined model"):
        local.interval(rows, 0.9)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_an_interval_covers_so_many_new_labels(federations, share):
    federation = federations["gaussian"]
    for site in ("a", "b"):
        [path, _], _ = federation.write(site)
        rows = read_table(federation.folder / f"{site}-judged.csv")
        model = load_model(path)
        (low, high) = model.interval(rows, share)
        y = rows.numbers("y")
        assert np.mean((low <= y) & (y <= high)) == pytest.approx(share, abs=0.08)
        assert_allclose((low + high) / 2.0, model.predict(rows), atol=1e-12)
        for wrong in (0.0, 1.0, 90.0):
            with pytest.raises(
                UsageError, match=f"an interval of {100 * wrong:g} %: needs a percentage between 0"
            ):
                model.interval(rows, wrong)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("additive", [False, True])
def test_a_change_of_any_byte_is_refused_or_changes_no_prediction(tmp_path, federations, additive):
    path = saved(tmp_path)
    rows = read_table(tmp_path / "t.csv")
    refused = 0
    if additive:
        federation = federations["linear"]
        [path, _], _ = federation.write("a")
        rows = read_table(federation.folder / "a-judged.csv")
    whole = path.read_bytes()
    expected = load_model(path).predict(rows).tobytes()
    for at in range(0, len(whole), 41):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            again = load_model(path).predict(rows)
        except (BadData, StorageError):
            refused += 1
        # the warning for people stands outside the checksum: whatever loads still predicts the same
        # bits
        else:
            assert again.tobytes() == expected
    assert refused > len(whole) // 41 // 2
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadData):
        load_model(path)
    path.write_bytes(whole.replace(b"coreg-model/%d" % FORMAT, b"coreg-model/00"))
    with pytest.raises(BadData, match=r"coreg-model/00', but this release reads"):
        load_model(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "builtins.eval"),
        ("function.features", None),
        ("function.weights", "function.weights.coef"),
        ("function.weights.coef", "function.features.components"),  # two axes, where one is needed
        ("function.block", "function.weights.coef"),  # no whole numbers
        ("sites", None),
        (
            "function.features.basis.mean",
            "function.features.levels",
        ),  # no element, where there are two columns
        ("function.joined", "function.other"),
        ("function.intercept", [1.0]),
        ("probability", {"slope": [1.0]}),
    ],
)
def test_a_file_of_another_program_with_a_right_checksum_is_refused(federations, key, value):
    [path, _], _ = federations["linear"].write("a")
    with safe_open(path, framework="numpy") as opened:
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    meta = place = json.loads(header(path)["model"])
    *above, last = key.split(".")
    for name in above:
        place = place[name]
    place[last] = value
    text = json.dumps(meta)
    metadata = header(path) | {"model": text, "sha256": checksum(arrays, text)}
    path.write_bytes(safetensors.numpy.save(arrays, metadata=metadata))
    with pytest.raises(BadData, match="another program wrote this model"):
        load_model(path)


def test_files_that_are_no_model_are_refused(tmp_path):
    path = tmp_path / "m"
    for data in (b"", b"id,a,y\n1,2,3\n", b"\x80\x04N." * 9):
        path.write_bytes(data)
        with pytest.raises(BadData, match="not a model file"):
            load_model(path)
    path.write_bytes(safetensors.numpy.save({"weights": np.zeros(3)}))
    with pytest.raises(BadData, match="but this release reads"):
        load_model(path)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(StorageError, match="no such model file"):
            load_model(missing)
    with pytest.raises(StorageError, match="cannot be written"):
        save_model(tmp_path / "none" / "m", site_model(tmp_path))


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    "ids", [{}, {"ids": ["007", "b", "c"], "id_column": "patient"}], ids=["without ids", "ids"]
)
def test_predictions_keep_bits_and_ids_and_are_for_their_owner_alone(tmp_path, suffix, ids):
    path = tmp_path / f"p.{suffix}"
    values = np.array([1 / 3, -2.0, 5e-324])
    write_predictions(path, values, **ids)
    found = read_table(path)
    if ids:
        assert found.columns == ["patient", "prediction"]
        assert found.ids("patient") == ids["ids"]
    else:
        assert found.columns == ["prediction"]
    assert found.numbers("prediction").tobytes() == values.tobytes()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)  # somebody opened it to a group, on purpose
    write_predictions(path, np.ones(3), **ids)
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_table(path).numbers("prediction").tolist() == [1.0, 1.0, 1.0]


PLAIN = ["p1", "-3", "+1.5e3", "007", "", "a=b", "'quoted'"]
IDS = st.text(st.sampled_from(list("=+-@'\t\r 1e.ab,\"é")), max_size=8)


@given(IDS)
@example("'=1")
@example("'-3")
def test_nothing_that_runs_begins_a_cell_and_every_text_comes_back(text):
    cell = guarded(text)
    assert unguarded(cell) == text
    assert not cell.startswith(("=", "@", "\t", "\r"))
    if cell.startswith(("+", "-")):
        float(cell)  # a number is no formula
    assert [guarded(plain) for plain in PLAIN] == PLAIN


def test_classes_and_headings_of_a_csv_file_are_no_formulas(tmp_path):
    """A study can name its classes, and a member has labels of them."""
    formula = '=HYPERLINK("http://evil.example","open")'
    write_predictions(
        tmp_path / "p.csv", [formula, None], ids=["p1", "p2"], id_column="=id", column="score",
        beside={"@part": np.ones(2)},
    )  # fmt: skip
    rows = list(csv.reader(io.StringIO((tmp_path / "p.csv").read_text())))
    assert rows == [["'=id", "score", "'@part"], ["p1", f"'{formula}", "1.0"], ["p2", "", "1.0"]]


@given(
    st.lists(
        IDS.map(str.strip).filter(lambda text: text not in ("", *NA_VALUES)), min_size=1, max_size=6
    )
)
def test_predictions_are_joined_by_the_ids_that_were_given(tmp_path_factory, ids):
    folder = tmp_path_factory.mktemp("f")
    write_predictions(folder / "p.csv", np.zeros(len(ids)), ids=ids, id_column="patient")
    cells = [
        row[0]
        for row in csv.reader(io.StringIO((folder / "p.csv").read_bytes().decode(), newline=""))
    ][1:]
    assert not any(re.match(r"[=@\t\r]", cell) for cell in cells)
    if "\r" not in "".join(ids):  # carriage returns alone are refused, wherever they stand
        assert read_table(folder / "p.csv").ids("patient") == texts_of_column(ids)
    write_predictions(folder / "p.parquet", np.zeros(len(ids)), ids=ids, id_column="patient")
    assert pl.read_parquet(folder / "p.parquet")["patient"].to_list() == ids
