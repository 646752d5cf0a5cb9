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

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from coreg_core.errors import CoregError, Unreachable, UsageError
from coreg_wire.transport.service import listening
from site_agent.service import loopback
from site_agent.service.loopback import BadRequest, json_of
from site_agent.service.on_demand import OnDemand

MOST_IDS = 10_000  # also of those that only this site knows
STATUS = {UsageError: 422, Unreachable: 503}


def application(on_demand: OnDemand) -> Starlette:
    """The application of an agent."""

    async def score(request: Request) -> JSONResponse:
        # A page of the web cannot send this type to another address unasked.
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise BadRequest(415, "content-type: application/json")
        ids, study = _asked(await json_of(request))
        try:
            return JSONResponse(await run_in_threadpool(on_demand.score, ids, study))
        except CoregError as error:
            raise BadRequest(STATUS.get(type(error), 409), str(error)) from None

    return loopback.application(Route("/score", score, methods=["POST"]))


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
    loopback.require_loopback(address, "listen")
    with listening(address, "listen") as socket:
        server = loopback.server(application(on_demand))
        thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join(5.0)
