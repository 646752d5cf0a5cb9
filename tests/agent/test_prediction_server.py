"""`coreg-agent predict --listen`: the same numbers, and the same faults, as for a file."""

import numpy as np
import polars as pl
import pytest
from starlette.testclient import TestClient
from trained_sites import trained

from coreg_core.errors import UsageError
from site_agent.data.tables import read_table
from site_agent.models.file import load_model
from site_agent.service import prediction_server as server


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    made = trained(tmp_path_factory.mktemp("served"))
    (joined, *_), _ = made.write("a")
    model = load_model(joined)
    with TestClient(server.application(model, 0.9)) as client:
        yield model, client, made.folder / "a-judged.csv"


def test_predictions_are_those_of_the_file(served):
    model, client, table = served
    rows = pl.read_csv(table).select("u", "v").to_dicts()
    answer = client.post("/predict", json={"rows": rows})
    assert answer.status_code == 200
    found, read = answer.json(), read_table(table)
    np.testing.assert_allclose(found["predictions"], model.predict(read), rtol=1e-13)
    np.testing.assert_allclose([found["low"], found["high"]], model.interval(read, 0.9), rtol=1e-13)
    texts = client.post("/predict", json={"rows": [{name: str(value) for name, value in row.items()} for row in rows]})
    np.testing.assert_allclose(texts.json()["predictions"], found["predictions"], rtol=1e-13)


@pytest.mark.parametrize(
    ("body", "status", "about"),
    [
        ("{", 400, "expected"),
        ("[1]", 400, "expected"),
        ('{"rows": 3}', 400, "list of objects"),
        ('{"rows": [3]}', 400, "list of objects"),
        ('{"rows": []}', 413, "0 rows"),
        ('{"rows": [{"u": 1}]}', 422, "'column': 'v'"),
        ('{"rows": [{"u": 1, "v": 2}, {"u": "x", "v": 2}]}', 422, "'row': 1"),
        ('{"rows": [{"u": 1, "v": [2]}]}', 422, "'column': 'v'"),
        ('{"rows": [{"u": 1, "v": true}]}', 422, "'column': 'v'"),
        ('{"rows": [{"u": 1e400, "v": 2}]}', 422, "'column': 'u'"),
    ],
)
def test_a_mistake_is_named_with_its_row_and_column(served, body, status, about):
    _, client, _ = served
    answer = client.post("/predict", content=body)
    assert (answer.status_code, about in str(answer.json()["error"])) == (status, True), answer.json()


def test_a_long_request_is_not_read(served, monkeypatch):
    _, client, _ = served
    monkeypatch.setattr(server, "MOST_BYTES", 10)
    assert client.post("/predict", json={"rows": [{"u": 1, "v": 2}]}).status_code == 413


def test_health_and_the_interface_describe_the_model(served):
    model, client, _ = served
    assert client.get("/health").json()["columns"] == list(model.preprocessing.sources)
    described = client.get("/openapi.json").json()
    row = described["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert set(row["rows"]["items"]["properties"]) == set(model.preprocessing.sources)


@pytest.mark.parametrize("address", ["0.0.0.0:80", "example.org:80", "127.0.0.1", "127.0.0.1:99999"])
def test_it_listens_on_loopback_only(served, address):
    with pytest.raises(UsageError, match=r"^--listen"):
        server.serve(served[0], address, None)
