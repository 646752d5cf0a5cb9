"""What the HTTP servers of an agent share: they listen on a loopback address, for programs on this
machine, and read JSON.

A page of the web could reach such a server through the browser of its operator, so a request under
another host name (DNS rebinding) or from another page is refused. An error of an endpoint is
answered as {"error": why}.
"""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coreg_core.errors import UsageError
from coreg_wire.identity.credentials import is_loopback

MOST_BYTES = 16 << 20  # of a request
MOST_CONNECTIONS = 32  # a further one is answered with 503
BODY_SECONDS = 10.0


class BadRequest(Exception):
    """A request that is refused, with its status and the reason."""

    def __init__(self, status: int, why: Any):
        super().__init__(why)
        self.status = status
        self.why = why


def application(*routes: Route) -> Starlette:
    """The endpoints, which raise `BadRequest`, behind the guard."""
    guard = Middleware(BaseHTTPMiddleware, dispatch=_guard)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={BadRequest: _refused})


def _refused(_request: Request, error: Any) -> JSONResponse:
    return JSONResponse({"error": error.why}, error.status)


async def _guard(request: Request, go_on: RequestResponseEndpoint) -> Response:
    if not is_loopback(request.headers.get("host", "")):
        why = "this server answers under a loopback address or localhost only"
        return _refused(request, BadRequest(421, why))
    page = request.headers.get("origin")  # a browser names the page that asks
    if page is not None and urlsplit(page).netloc != request.headers["host"]:
        return _refused(request, BadRequest(403, "a web page of another address cannot ask"))
    return await go_on(request)


def server(endpoints: Starlette) -> uvicorn.Server:
    config = uvicorn.Config(
        endpoints, log_config=None, server_header=False, limit_concurrency=MOST_CONNECTIONS
    )
    return uvicorn.Server(config)


def require_loopback(address: str, option: str) -> None:
    """UsageError: other machines could ask."""
    if not is_loopback(address):
        raise UsageError(
            f"{option} {address}: a loopback address only. For other machines put a proxy with TLS"
            " before it."
        )


async def json_of(request: Request) -> Any:
    """The body of a request.

    Raises
    ------
    BadRequest
        it is no JSON, in UTF-8, of at most `MOST_BYTES`.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():  # it can come in chunks, without a length
                body += part
                if len(body) > MOST_BYTES:
                    raise BadRequest(413, f"a request has at most {MOST_BYTES} bytes")
    except TimeoutError:
        raise BadRequest(408, f"the body did not come within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise BadRequest(400, "the body did not come") from None
    try:
        value = json.loads(body.decode(), parse_constant=_no_number)
        json.dumps(value, ensure_ascii=False).encode()  # half of a character is no text
    except (ValueError, TypeError, RecursionError):
        raise BadRequest(400, "expected a body in JSON, as UTF-8") from None
    return value


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")
