"""The page's server: the state of the federation as a page and as JSON. It is read-only.

A strict Content-Security-Policy: no script, no inline style, and nothing from another host.
"""

import hmac
import ipaddress
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.responses import PlainTextResponse as Text
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from coordinator.store.status import overview
from coordinator.web.page import page
from coreg_core.errors import CoregError, StorageError, UsageError
from coreg_wire.identity.credentials import is_loopback
from coreg_wire.transport.service import host_port, listening

STATIC = Path(__file__).parent / "static"
COOKIE = "coreg_token"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def application(store: Path, token: Callable[[], str] | None = None) -> Starlette:
    """Shows this store.

    Without a token it rejects foreign host names, else requests without the token as it is now.
    """

    async def admitted(request: Request, go_on: RequestResponseEndpoint) -> Response:
        if token is None:
            if _is_own(request.url.hostname or ""):
                return await go_on(request)
            return Text(
                "Host name not accepted. Open the page by its IP address, or set"
                " --web-token-file.\n",
                421,
            )
        try:
            expected = token()
        except CoregError:
            return Text("The token of this page cannot be read now.\n", 503)

        def fits(word: str) -> bool:
            return hmac.compare_digest(word.encode(), expected.encode())

        if fits(request.query_params.get("token", "")):  # once, from a link; afterwards the cookie
            moved = RedirectResponse(request.url.path, 303)
            secure = request.url.scheme == "https"
            moved.set_cookie(COOKIE, expected, httponly=True, samesite="strict", secure=secure)
            return moved
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if fits(request.cookies.get(COOKIE, "")) or fits(bearer):
            return await go_on(request)
        if bearer or "token" in request.query_params:
            return Text("Not the token of --web-token-file. In an address write a + as %2B.\n", 401)
        return Text("A token is needed: open the page with ?token=…\n", 401)

    async def guard(request: Request, go_on: RequestResponseEndpoint) -> Response:
        answer = await admitted(request, go_on)
        answer.headers.update(HEADERS)
        return answer

    return Starlette(
        routes=[
            Route("/", lambda _: HTMLResponse(page(overview(store)))),
            Route("/status.json", lambda _: JSONResponse(overview(store))),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)],
        exception_handlers={StorageError: lambda _, error: Text(f"{error}\n", 503)},
    )


def _is_own(host: str) -> bool:
    """Whether it is an IP address or localhost.

    Under another name, a foreign page could read this one (DNS rebinding).
    """
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    return True


def bound(address: str, *, guarded: bool) -> socket.socket:
    host_port(address, "--web")
    if not is_loopback(address) and not guarded:
        raise UsageError(
            f"--web {address} can be reached from elsewhere: set a token (--web-token-file), and"
            " put TLS before it."
        )
    return listening(address, "--web")


def show(address: str, store: Path, token: Callable[[], str] | None) -> Callable[[], None]:
    """Serve the page in a thread; the returned function ends it."""
    server_socket = bound(address, guarded=token is not None and bool(token()))
    quiet = uvicorn.Config(
        application(store, token), log_config=None, access_log=False, server_header=False
    )
    quiet.timeout_graceful_shutdown = 1
    server = uvicorn.Server(quiet)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [server_socket]}, name="web", daemon=True
    )
    thread.start()

    def end() -> None:
        server.should_exit = True
        thread.join(5.0)
        server_socket.close()

    return end
