"""`coreg-agent predict --listen`: a model over HTTP on this machine.

The same encoder and faults as for files.

POST /predict {"rows": [{column: value, …}, …]}  →  {"run", "target", "predictions", "notes"}, and
of some
models "deviations", "contributions" by column, "low" and "high"
"""

import threading
from typing import Any

import polars as pl
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from coreg_core.errors import CoregError
from coreg_wire.transport.service import listening, release
from site_agent.data.cell_text import text_of
from site_agent.data.sources import FRAME, BadTable, TableFault
from site_agent.data.tables import read_table
from site_agent.models.explain import contributions, is_linear
from site_agent.models.file import ModelFile
from site_agent.service import loopback
from site_agent.service.loopback import BadRequest, json_of

MOST_ROWS = 100_000  # of a request


def application(model: ModelFile, interval: float | None) -> Starlette:
    """The application of one model; ``interval``: a share of new labels, for low and high ends."""
    one_at_a_time = threading.Lock()

    def predicted(rows: list[dict[str, Any]]) -> dict[str, Any]:
        columns = model.preprocessing.sources
        cells = {
            name: _column(name, [row.get(name) for row in rows])
            for name in columns
            if any(name in row for row in rows)
        }
        with one_at_a_time:
            table = read_table(pl.DataFrame(cells), na_values=model.preprocessing.na_values)
            answer: dict[str, Any] = {"run": model.run, "target": model.target}
            answer["predictions"] = model.predict(table).tolist()
            if interval is not None:
                low, high = model.interval(table, interval)
                answer |= {"low": low.tolist(), "high": high.tolist()}
            if (deviations := model.deviations(table)) is not None:
                answer["deviations"] = deviations.tolist()
            if is_linear(model):
                parts = contributions(model, table)
                answer["contributions"] = {name: part.tolist() for name, part in parts.items()}
            return answer | {"notes": model.preprocessing.moved(table)}

    async def predict(request: Request) -> JSONResponse:
        rows = _rows(await json_of(request))
        try:
            return JSONResponse(await run_in_threadpool(predicted, rows))
        except BadTable as error:
            raise BadRequest(422, [_fault(fault) for fault in error.faults]) from None
        except CoregError as error:
            raise BadRequest(422, str(error)) from None

    def health(_request: Request) -> JSONResponse:
        about = {"site": model.site, "run": model.run, "target": model.target, "release": release()}
        return JSONResponse({"status": "ok", **about, "columns": list(model.preprocessing.sources)})

    return loopback.application(
        Route("/predict", predict, methods=["POST"]),
        Route("/health", health),
        Route("/openapi.json", lambda _request: JSONResponse(described(model))),
    )


def _rows(body: Any) -> list[dict[str, Any]]:
    try:
        rows: Any = body["rows"]
    except (TypeError, KeyError):
        why = 'expected {"rows": [{column: value, …}, …]} in JSON, as UTF-8'
        raise BadRequest(400, why) from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadRequest(400, "rows is a list of objects, one for each record")
    if not 1 <= len(rows) <= MOST_ROWS:
        raise BadRequest(413, f"{len(rows)} rows; 1 to {MOST_ROWS} fit a request")
    return rows


def _fault(fault: TableFault) -> dict[str, Any]:
    """A fault of a cell or a column, with its rows counted from 0, as in the request."""
    fields = fault.fields()
    fields.pop("file", None)
    if fields.get("row") is not None:
        fields["row"] -= 1
    return fields


def _column(name: str, cells: list[Any]) -> pl.Series:
    """The cells as texts, each by itself: a prediction does not depend on the rows beside it."""
    texts = list[str | None]()
    for line, cell in enumerate(cells, 1):
        try:
            texts.append(text_of(cell))
        except TypeError as error:
            what = f"a cell is a number, a text, true, false or null, and not a {error}."
            todo = "Send the cell as a number or a text."
            fault = TableFault(FRAME, what, todo, kind="type", column=name, lines=(line,))
            raise BadTable(fault) from None
    return pl.Series(texts, dtype=pl.String)


def described(model: ModelFile) -> dict[str, Any]:
    """The interface in OpenAPI 3.1."""
    cell = {"type": ["number", "string", "null"]}
    row = {"type": "object", "properties": dict.fromkeys(model.preprocessing.sources, cell)}
    request = {
        "type": "object",
        "required": ["rows"],
        "properties": {"rows": {"type": "array", "items": row}},
    }
    text = {"type": "string"}
    numbers = {"type": "array", "items": {"type": "number"}}
    answer = {
        **dict.fromkeys(("run", "target"), text),
        **dict.fromkeys(("predictions", "low", "high", "deviations"), numbers),
        "contributions": {"type": "object", "additionalProperties": numbers},
        "notes": {"type": "array", "items": text},
    }
    predict = {
        "summary": "Predict records",
        "requestBody": {"required": True, **_in_json(request)},
        "responses": {
            "200": {
                "description": f"predictions of {model.target or 'the target'}",
                **_in_json({"type": "object", "properties": answer}),
            },
            "422": {
                "description": "a cell or a column that cannot be read: row, column and what to do"
            },
        },
    }
    health = {"summary": "The model", "responses": {"200": {"description": "ok"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"coreg model of {model.site}", "version": release() or "0"},
        "paths": {"/predict": {"post": predict}, "/health": {"get": health}},
    }


def _in_json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def serve(model: ModelFile, address: str, interval: float | None) -> None:
    """Answer until a signal ends the process."""
    loopback.require_loopback(address, "--listen")
    with listening(address, "--listen") as socket:
        loopback.server(application(model, interval)).run([socket])
