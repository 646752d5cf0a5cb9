"""`POST /score` of an agent that serves: scores on demand for programs on this machine.

POST /score {"ids": [text, …], "study": name}

→ {"study", "model", "target", "interval", "scores": [{"id", "score", "low", "high", "sites",
"from"}]}

Of several classes "score" is the most probable one, with "probability_CLASS" of each.
"from" is "sites", or "joined model" where too few other sites know the individual.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from coreg_core.errors import CoregError, Unreachable, UsageError
from coreg_wire.transport.service import listening
from site_agent.service.on_demand import OnDemand
from site_agent.service.prediction_server import (
    GUARD,
    BadRequest,
    json_of,
    refused,
    require_loopback,
)

MOST_IDS = 10_000  # also of those that only this site knows
STATUS = {UsageError: 422, Unreachable: 503}


def application(on_demand: OnDemand) -> Starlette:
    """The application of an agent."""

    async def score(request: Request) -> JSONResponse:
        try:
            # A page of the web cannot send this type to another address unasked.
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                raise BadRequest(415, "content-type: application/json")
            ids, study = _asked(await json_of(request))
            return JSONResponse(await run_in_threadpool(on_demand.score, ids, study))
        except BadRequest as error:
            return refused(error.status, error.why)
        except CoregError as error:
            return refused(STATUS.get(type(error), 409), str(error))

    return Starlette(routes=[Route("/score", score, methods=["POST"])], middleware=[GUARD])


def _asked(body: Any) -> tuple[list[str], str]:
    match body:
        case {"ids": [*ids]} if all(isinstance(text, str) for text in ids) and body["ids"]:
            if len(ids) > MOST_IDS:
                raise BadRequest(413, f"{len(ids)} ids; {MOST_IDS} fit a request")
            return ids, str(body.get("study", ""))
    raise BadRequest(400, 'expected {"ids": [text, …]} in JSON')


@contextmanager
def answering(on_demand: OnDemand, address: str) -> Iterator[None]:
    """Answer requests in a thread until the block ends."""
    require_loopback(address, "listen")
    config = uvicorn.Config(application(on_demand), log_config=None, server_header=False)
    with listening(address, "listen") as socket:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join(5.0)
