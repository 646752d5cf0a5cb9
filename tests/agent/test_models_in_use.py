"""What a model is used for: its columns, its picture, ONNX, HTTP, and how a new table differs from
that of the training.
"""

import asyncio
import dataclasses
import json

import numpy as np
import polars as pl
import pytest
from agent_files import agent, fitted, table
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from starlette.requests import Request
from starlette.testclient import TestClient
from typer.testing import CliRunner

import coreg_federation as coreg
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import UsageError
from coreg_core.evaluation import Probability
from coreg_core.kernels import Gaussian, Linear
from site_agent.cli.app import app
from site_agent.data.dates import day_of
from site_agent.data.tables import read_table
from site_agent.models.explain import contributions, own_columns
from site_agent.models.file import ModelFile, load_model, save_model
from site_agent.models.onnx_export import export
from site_agent.service import loopback
from site_agent.service import prediction_server as server
from site_agent.service.loopback import BadRequest, json_of


def joined(federation, site="a"):
    path = federation.write(site)[0][0]
    return path, load_model(path), read_table(federation.folder / f"{site}-judged.csv")


def test_contributions_of_a_linear_model_add_up_to_the_prediction_exactly(federations):
    _, model, table = joined(federations["linear"])
    found = contributions(model, table)
    assert list(found) == ["u", "v"]
    X = model.features(table)
    centre = (
        model.function.predict(model.function.features.basis.mean[None]) * model.divisor
        + model.shift
    )
    assert_allclose(sum(found.values()) + centre, model.predict(table), rtol=0.0, atol=1e-12)
    # Each is the Shapley value: the mean over both orders in which the columns become known.
    for j, name in enumerate(found):
        absent, only, others = np.tile(model.function.features.basis.mean, (3, len(X), 1))
        only[:, j] = X[:, j]
        others[:, 1 - j] = X[:, 1 - j]
        f = model.function.predict
        shapley = 0.5 * (f(only) - f(absent)) + 0.5 * (f(X) - f(others))
        assert_allclose(found[name], shapley * model.divisor, rtol=0.0, atol=1e-12)


def test_importance_is_of_the_column_that_the_target_depends_on_and_says_how_it_was_found(
    federations,
):
    for kernel, by in (("gaussian", "permutation"), ("linear", "shapley")):
        path, model, _ = joined(federations[kernel])
        found = model.findings
        assert found.columns_by == by
        assert found.columns["u"] > 5.0 * abs(found.columns["v"]), "y depends on u"
        shown = CliRunner().invoke(app, ["report", "--model", str(path)]).output
        assert {"permutation": "if one is permuted", "shapley": "it is linear"}[by] in shown
    assert own_columns(model, np.zeros((1, 2)), np.zeros(1)) == {}


def test_predict_writes_contributions_beside_the_predictions(federations, tmp_path):
    path, model, table = joined(federations["linear"])
    out = tmp_path / "p.csv"
    data = str(federations["linear"].folder / "a-judged.csv")
    asked = [
        "predict",
        "--model",
        str(path),
        "--data",
        data,
        "--output",
        str(out),
        "--contributions",
    ]
    assert CliRunner().invoke(app, asked).exit_code == 0
    written = pl.read_csv(out)
    assert written.columns == ["prediction", "contribution_u", "contribution_v"]
    assert_allclose(written["contribution_u"], contributions(model, table)["u"], atol=1e-12)
    _, model, table = joined(federations["gaussian"])
    with pytest.raises(UsageError, match="coreg-agent report"):
        contributions(model, table)


def test_a_model_file_without_rows_has_no_left_out_labels_either(federations, tmp_path):
    for kernel, holds in (("gaussian", True), ("linear", False)):
        path, model, _ = joined(federations[kernel])
        assert (model.findings.left_out is not None) is holds
        label = repr(float(federations[kernel].prepared["a"].data.y[0]))
        assert (label.encode() in path.read_bytes()) is holds
        assert model.findings.columns, "the rest of the findings stays"


def test_a_report_draws_its_picture_and_keeps_single_labels_out_of_its_json(federations, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    path, model, _ = joined(federations["gaussian"])
    ran = CliRunner().invoke(
        app, ["report", "--model", str(path), "--plot", str(tmp_path / "r.svg"), "--json"]
    )
    assert ran.exit_code == 0
    [shown] = json.loads(ran.output)["runs"]
    assert "left_out" not in shown
    assert len(model.findings.left_out["labels"]) == len(
        model.findings.left_out["residuals"]["joined"]
    )
    drawn = (tmp_path / "r.svg").read_text()
    assert drawn.count('<g id="axes_') == 3
    refused = CliRunner().invoke(
        app, ["report", "--model", str(path), "--plot", str(tmp_path / "r.doc")]
    )
    assert "--plot" in str(refused.exception or refused.output)


def test_a_model_is_exported_in_onnx_with_a_warning_if_it_holds_rows(federations, tmp_path):
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    for kernel, warned in (("gaussian", True), ("linear", False)):
        path, _, _ = joined(federations[kernel])
        ran = CliRunner().invoke(
            app, ["models", "--export", str(tmp_path / "m.onnx"), "--model", str(path)]
        )
        assert ran.exit_code == 0
        assert ("holds rows of this site's table" in ran.stderr) == warned


# --- ONNX -----------------------------------------------------------------------------------------


MIXED = (
    "id,a,c,d,b,y\n1,1.5,x,2026-01-02,yes,1\n2,,z,2026-03-04,no,2\n"
    "3,4,,2026-05-06,yes,3\n4,0.5,x,,,\n"
)


def of_graph(table, preprocessing):
    """The table as an application gives it to the graph, by the docstring of the module."""
    out = {}
    for column in preprocessing.columns:
        if column.kind == "text":
            out[column.name] = np.array(
                [[text or ""] for text in table.texts(column.name)], dtype=object
            )
        elif column.kind == "date":
            days = []
            for text in table.texts(column.name):
                day = np.nan
                if text is not None:
                    day = day_of(text, column.layout)
                days.append(day)
            out[column.name] = np.array(days, dtype=np.float64)[:, None]
        else:
            out[column.name] = column.numbers(table)[:, None]
    return out


def both(path, model, table):
    """Predictions by onnxruntime from the file, and by the model."""
    onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    export(path, model)
    assert path.stat().st_mode & 0o777 == 0o600
    onnx.checker.check_model(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["prediction"], of_graph(table, model.preprocessing))[0], model.predict(
        table
    )


@pytest.mark.parametrize("probability", [None, Probability(3.0, -1.0)], ids=["number", "yes/no"])
@pytest.mark.parametrize("kernel", [Gaussian(1.5), Linear()], ids=repr)
def test_an_agreement_with_numbers_texts_dates_truth_values_and_empty_cells(
    tmp_path, kernel, probability
):
    preprocessing, found = fitted(tmp_path, MIXED)
    assert {column.kind for column in preprocessing.columns} == {
        "numeric",
        "text",
        "date",
        "boolean",
    }
    points = preprocessing.transform(found.labelled)
    function = KernelExpansion(kernel, points, np.linspace(-1.0, 1.5, len(points)))
    plan = {"seed": 0, "kernel": "gaussian"}
    model = ModelFile(
        function,
        preprocessing,
        "y",
        0.4,
        0.3,
        "north",
        "r1",
        "CONVERGED",
        0.1,
        plan,
        probability=probability,
    )
    other = tmp_path / "other.csv"
    other.write_text(MIXED + "5,9,unseen,2020-02-29,no,5\n")
    mine, its = both(tmp_path / "m.onnx", model, read_table(other))
    assert np.ptp(its) > 0.01
    assert_allclose(mine, its, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "names",
    [("t1", "t2"), ("c0", "c1"), ("prediction", "x"), ("coreg/t0", "coreg/c1"), ("a b", "größe")],
)
def test_a_column_has_any_name_in_the_graph(federations, tmp_path, names):
    _, model, _ = joined(federations["gaussian"])
    columns = tuple(
        dataclasses.replace(column, name=name)
        for column, name in zip(model.preprocessing.columns, names, strict=True)
    )
    preprocessing = dataclasses.replace(model.preprocessing, columns=columns)
    renamed = dataclasses.replace(model, preprocessing=preprocessing)
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    export(tmp_path / "m.onnx", renamed)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    rows = pl.DataFrame({name: [0.3, -1.0, 2.0] for name in names})
    given = {name: rows[name].to_numpy()[:, None] for name in names}
    found = session.run(None, given)[0]
    assert_allclose(found, renamed.predict(read_table(rows)), rtol=1e-5, atol=1e-5)


def test_a_column_without_a_name_is_refused(federations, tmp_path):
    _, model, _ = joined(federations["gaussian"])
    first, *others = model.preprocessing.columns
    columns = (dataclasses.replace(first, name=""), *others)
    preprocessing = dataclasses.replace(model.preprocessing, columns=columns)
    with pytest.raises(UsageError, match="without a name"):
        export(tmp_path / "m.onnx", dataclasses.replace(model, preprocessing=preprocessing))


@pytest.mark.parametrize("offset", [0.0, 1e5, 1e8])
def test_unscaled_values_keep_their_digits_in_the_graph(tmp_path, offset):
    rows = [f"{i},{offset + i % 7},x,{i}" for i in range(9)] + [f"9,{offset},x,"]
    preprocessing, found = fitted(tmp_path, "\n".join(["id,a,c,y", *rows, ""]), scale=False)
    points = preprocessing.transform(found.labelled)
    function = KernelExpansion(Gaussian(2.0), points, np.linspace(-1.0, 1.5, len(points)))
    model = ModelFile(function, preprocessing, "y", 0.0, 1.0, "a", "r1", "CONVERGED", 0.1, {})
    mine, its = both(tmp_path / "m.onnx", model, read_table(tmp_path / "t.csv"))
    assert_allclose(mine, its, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("site", ["a", "b", "c"])
@pytest.mark.parametrize("name", ["gaussian", "linear", "noisy"])
def test_joined_and_local_models_of_an_additive_training(federations, tmp_path, name, site):
    federation = federations[name]
    far = tmp_path / "far.csv"  # the last rows are beyond the clipping of standardised columns
    far.write_text(
        (federation.folder / f"{site}-judged.csv").read_text() + "q1,50,-50,1\nq2,-7,7,1\n"
    )
    rows = read_table(far)
    paths = federation.write(site)[0]
    if site != "c":
        assert len(paths) == 2, "the joined and the local model"
    for path in paths:
        mine, its = both(tmp_path / "m.onnx", load_model(path), rows)
        # The forest adds its leaves in float32.
        scale = np.abs(its).max()
        share = 1e-10
        if site == "a" and name != "linear":
            share = 1e-5
        assert_allclose(mine, its, rtol=0.0, atol=share * scale)


# --- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(federations):
    _, model, _ = joined(federations["gaussian"])
    with TestClient(server.application(model, 0.9), base_url="http://127.0.0.1") as client:
        yield model, client, federations["gaussian"].folder / "a-judged.csv"


def test_predictions_are_those_of_the_file(served):
    model, client, table = served
    rows = pl.read_csv(table).select("u", "v").to_dicts()
    answer = client.post("/predict", json={"rows": rows})
    assert answer.status_code == 200
    found = answer.json()
    read = read_table(table)
    assert_allclose(found["predictions"], model.predict(read), rtol=1e-13)
    assert_allclose([found["low"], found["high"]], model.interval(read, 0.9), rtol=1e-13)
    texts = client.post(
        "/predict",
        json={"rows": [{name: str(value) for name, value in row.items()} for row in rows]},
    )
    assert_allclose(texts.json()["predictions"], found["predictions"], rtol=1e-13)


@pytest.mark.parametrize(
    ("body", "status", "about"),
    [
        ("{", 400, "expected"),
        ('{"rows": [3]}', 400, "list of objects"),
        ('{"rows": []}', 413, "0 rows"),
        ('{"rows": [{"u": 1}]}', 422, "'column': 'v'"),
        ('{"rows": [{"u": 1, "v": 2}, {"u": "x", "v": 2}]}', 422, "'row': 1"),
        ('{"rows": [{"u": 1, "v": [2]}]}', 422, "'column': 'v'"),
        ('{"rows": [{"u": 1e400, "v": 2}]}', 422, "'column': 'u'"),
        ('{"rows": [{"u": 1%s, "v": 2}]}' % (400 * "0"), 422, "'column': 'u'"),
        ('{"rows": [{"u": NaN, "v": 2}]}', 400, "in JSON"),
        ('{"rows": [{"u": "\\ud800", "v": 2}]}', 400, "as UTF-8"),
        ('{"rows": ' + 20_000 * "[", 400, "in JSON"),
    ],
)
def test_a_mistake_is_named_with_its_row_and_column(served, body, status, about):
    _, client, _ = served
    answer = client.post("/predict", content=body)
    assert answer.status_code == status, answer.json()
    assert about in str(answer.json()["error"]), answer.json()


def test_a_prediction_does_not_depend_on_the_rows_beside_it(served):
    _, client, _ = served
    row = {"u": 2.0, "v": 0.1}
    alone = client.post("/predict", json={"rows": [row]}).json()["predictions"]
    for other in ({"u": "3", "v": 1}, {"u": None, "v": 2}, {"u": 2**70, "v": 1e-7}):
        beside = client.post("/predict", json={"rows": [row, other]}).json()["predictions"]
        assert beside[0] == pytest.approx(alone[0], rel=1e-12)


def test_a_request_in_chunks_is_bounded_and_a_foreign_host_is_refused(served):
    _, client, _ = served
    chunks = (b" " * (1 << 20) for _ in range(17))
    assert client.post("/predict", content=chunks).status_code == 413
    whole = (part for part in (b'{"rows": [{"u": 1, ', b'"v": 2}]}'))
    assert client.post("/predict", content=whole).status_code == 200
    answer = client.get("/health", headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert "columns" not in answer.text


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    """Each half request held its bytes for ever."""
    monkeypatch.setattr(loopback, "BODY_SECONDS", 0.1)

    async def never():
        await asyncio.sleep(60.0)

    async def gone():
        return {"type": "http.disconnect"}

    for receive, status in ((never, 408), (gone, 400)):
        request = Request({"type": "http"}, receive)
        with pytest.raises(BadRequest) as refused:
            asyncio.run(json_of(request))
        assert refused.value.status == status


def test_a_page_of_another_site_is_refused(served):
    _, client, _ = served
    rows = {"content": b'{"rows": [{"u": 1, "v": 2}]}'}
    page = client.post("/predict", headers={"Origin": "http://evil.example"}, **rows)
    assert page.status_code == 403
    own = client.post("/predict", headers={"Origin": str(client.base_url)}, **rows)
    assert own.status_code == 200


def test_health_and_the_interface_describe_the_model(served):
    model, client, _ = served
    assert client.get("/health").json()["columns"] == list(model.preprocessing.sources)
    described = client.get("/openapi.json").json()
    row = described["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]["properties"]
    assert set(row["rows"]["items"]["properties"]) == set(model.preprocessing.sources)


def test_options_of_a_table_are_refused_with_listen():
    with pytest.raises(UsageError, match="--listen takes --model, --interval and --config"):
        agent("predict", "--listen", "127.0.0.1:1", "--contributions")


@pytest.mark.parametrize(
    "address", ["0.0.0.0:80", "example.org:80", "127.0.0.1", "127.0.0.1:99999", ":8080"]
)
def test_it_listens_on_loopback_only(served, address):
    with pytest.raises(UsageError, match=r"^--listen"):
        server.serve(served[0], address, None)


# --- another table than that of the training ------------------------------------------------------


COUNT = 60


@pytest.fixture(scope="module")
def drifting(tmp_path_factory):
    path = tmp_path_factory.mktemp("drift")
    rows = [f"p{i},{i},{'xz'[i % 2]},{i if i < COUNT // 2 else ''}" for i in range(COUNT)]
    preprocessing, _ = fitted(path, "\n".join(["id,a,c,y", *rows]))
    points = preprocessing.transform(read_table(path / "t.csv"))[:2]
    function = KernelExpansion(Gaussian(1.0), points, np.array([1.0, 2.0]))
    save_model(
        path / "m",
        ModelFile(function, preprocessing, "y", 0.0, 1.0, "n", "r", "CONVERGED", 0.1, {}),
    )
    return path


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30))
def test_the_share_beyond_training(drifting, values):
    preprocessing = load_model(drifting / "m").preprocessing
    assert preprocessing.ranges == {"a": (0.0, 59.0, COUNT)}
    moved = preprocessing.moved(table(drifting, "\n".join(["a,c", *(f"{v!r},x" for v in values)])))
    outside = sum(v < 0 or v > 59 for v in values)
    assert bool(moved) == (outside / len(values) > max(0.05, 2 * 2 / 61))
    assert all(f"{outside} of {len(values)} cells" in note for note in moved)


def test_a_linear_model_knows_four_deviations_of_its_columns_and_no_cell(federations):
    made = federations["linear"]
    trained = pl.concat(
        [pl.read_csv(made.folder / f"a{name}.csv").select("id", "u") for name in ("", "-shared")]
    )
    u = trained.unique("id")["u"].to_numpy()
    new = pl.read_csv(made.folder / "a-judged.csv")
    for path in made.write("a")[0]:
        model = coreg.load_model(path)
        model.predict(new)  # a warning is an error here
        assert_allclose(
            load_model(path).preprocessing.ranges["u"][:2], u.mean() + u.std() * np.array([-4, 4])
        )
        with pytest.warns(
            UserWarning, match=r"column 'u': \d+ of 200 cells .* outside the range of training"
        ):
            model.predict(new.with_columns(new["u"] * 12))


def test_the_public_model_warns_as_the_command_does(drifting):
    model = coreg.load_model(drifting / "m")
    inside = pl.DataFrame({"a": [1.0, 2.0], "c": ["x", "z"]})
    expected = model.predict(inside)  # a warning is an error here
    with pytest.warns(
        UserWarning, match="column 'a': 2 of 2 cells .* outside the range of training"
    ) as heard:
        assert model.predict(inside.with_columns(pl.col("a") * 1000)).shape == expected.shape
    assert [warning.filename for warning in heard] == [__file__], "it points at the call"
    with pytest.warns(UserWarning, match="a text that training never had: 1"):
        model.predict(inside.with_columns(pl.Series("c", ["x", "new"])))
