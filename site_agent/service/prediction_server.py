"""`coreg-agent predict --listen`: a model over HTTP on this machine.

The same encoder and faults as for files.

POST /predict {"rows": [{column: value, …}, …]}  →  {"run", "target", "predictions", "notes"}, and
of some
models "deviations", "contributions" by column, "low" and "high"
"""

import json
import threading
from typing import Any

import polars as pl
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coreg_core.errors import BadData, UsageError
from coreg_wire.identity.credentials import is_loopback
from coreg_wire.transport.service import listening, release
from site_agent.data.cell_text import text_of
from site_agent.data.sources import FRAME, BadTable, Fault
from site_agent.data.tables import read_table
from site_agent.models.explain import contributions, is_linear
from site_agent.models.file import ModelFile

MOST_BYTES = 16 << 20  # of a request, as the next
MOST_ROWS = 100_000


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
            answer["notes"] = [*table.doubts(columns), *model.preprocessing.moved(table)]
            return answer

    async def predict(request: Request) -> JSONResponse:
        try:
            rows = (await json_of(request))["rows"]
        except BadRequest as error:
            return refused(error.status, error.why)
        except (TypeError, KeyError):
            return refused(400, 'expected {"rows": [{column: value, …}, …]} in JSON, as UTF-8')
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            return refused(400, "rows is a list of objects, one for each record")
        if not 1 <= len(rows) <= MOST_ROWS:
            return refused(413, f"{len(rows)} rows; 1 to {MOST_ROWS} fit a request")
        try:
            return JSONResponse(await run_in_threadpool(predicted, rows))
        except BadTable as error:
            return refused(422, [_fault(fault.fields()) for fault in error.faults])
        except (BadData, UsageError) as error:
            return refused(422, str(error))

    def health(_request: Request) -> JSONResponse:
        about = {"site": model.site, "run": model.run, "target": model.target, "release": release()}
        return JSONResponse({"status": "ok", **about, "columns": list(model.preprocessing.sources)})

    return Starlette(
        routes=[
            Route("/predict", predict, methods=["POST"]),
            Route("/health", health),
            Route("/openapi.json", lambda _request: JSONResponse(described(model))),
        ],
        middleware=[GUARD],
    )


class BadRequest(Exception):
    """A request that is refused, with its status and the reason."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status
        self.why = why


async def json_of(request: Request) -> Any:
    """The body of a request.

    Raises
    ------
    BadRequest
        it is no JSON, in UTF-8, of at most `MOST_BYTES`.
    """
    body = bytearray()
    async for part in request.stream():  # it can come in chunks, without a length
        body += part
        if len(body) > MOST_BYTES:
            raise BadRequest(413, f"a request has at most {MOST_BYTES} bytes")
    try:
        value = json.loads(body.decode(), parse_constant=_no_number)
        json.dumps(value, ensure_ascii=False).encode()  # half of a character is no text
    except (ValueError, TypeError, RecursionError):
        raise BadRequest(400, "expected a body in JSON, as UTF-8") from None
    return value


async def _guard(request: Request, go_on: RequestResponseEndpoint) -> Response:
    # Under another name a page of the web could read the answers (DNS rebinding).
    if not is_loopback(request.headers.get("host", "")):
        return refused(421, "this server answers under a loopback address or localhost only")
    return await go_on(request)


GUARD = Middleware(BaseHTTPMiddleware, dispatch=_guard)


def require_loopback(address: str, option: str) -> None:
    """UsageError: other machines could ask."""
    if not is_loopback(address):
        raise UsageError(
            f"{option} {address}: a loopback address only. For other machines put a proxy with TLS"
            " before it."
        )


def _column(name: str, cells: list[Any]) -> pl.Series:
    """The cells as texts, each by itself: a prediction does not depend on the rows beside it."""
    texts = list[str | None]()
    for line, cell in enumerate(cells, 1):
        try:
            texts.append(text_of(cell))
        except TypeError as error:
            what = f"a cell is a number, a text, true, false or null, and not a {error}."
            todo = "Send the cell as a number or a text."
            fault = Fault(FRAME, what, todo, kind="type", column=name, lines=(line,))
            raise BadTable(fault) from None
    return pl.Series(texts, dtype=pl.String)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _fault(fields: dict[str, Any]) -> dict[str, Any]:
    """A fault with its rows counted from 0, as in the request."""
    return {
        key: value - 1 if key == "row" and value is not None else value
        for key, value in fields.items()
        if key != "file"
    }


def refused(status: int, why: Any) -> JSONResponse:
    return JSONResponse({"error": why}, status)


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
    require_loopback(address, "--listen")
    config = uvicorn.Config(application(model, interval), log_config=None, server_header=False)
    with listening(address, "--listen") as server:
        uvicorn.Server(config).run([server])
