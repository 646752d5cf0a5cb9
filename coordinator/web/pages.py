"""The web application: Starlette, templates over `values`, and a strict Content-Security-Policy.

The browser loads everything from this server: no content delivery network, no inline script, no inline style. The pages are
read-only.
"""

import asyncio
import hmac
import ipaddress
import socket
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from coordinator.web import values
from coreg_core.errors import StorageError, UsageError
from coreg_wire.identity.credentials import is_loopback
from coreg_wire.terminal.output import human_bytes
from coreg_wire.transport.addresses import why_not

HERE = Path(__file__).parent
COOKIE = "coreg_token"
LOOK = 0.5  # seconds between two checks for a change
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
)
POLICY += "form-action 'self'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class _Guard(BaseHTTPMiddleware):
    """Adds the headers, and rejects requests without the token. Without a token, it rejects foreign host names."""

    def __init__(self, app: Any, token: str | None):
        super().__init__(app)
        self._token = token

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        answer = await self._answer(request, call_next)
        answer.headers.update(HEADERS)
        return answer

    async def _answer(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        if self._token is None:
            if not _is_own(request.url.hostname or ""):
                return PlainTextResponse(
                    "This host name is not accepted. Open the page by its IP address, or set a token (--web-token-file).\n",
                    status_code=421,
                )
            return await call_next(request)
        if self._fits(request.query_params.get("token", "")):  # once, from a link; afterwards the cookie
            answer: Response = RedirectResponse(request.url.path, status_code=303)
            secure = request.url.scheme == "https"
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict", secure=secure)
            return answer
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._fits(request.cookies.get(COOKIE, "")) or self._fits(bearer):
            return await call_next(request)
        wrong = bearer or "token" in request.query_params
        said = "This is not the token of --web-token-file. In an address write a + as %2B."
        return PlainTextResponse(
            f"{said if wrong else 'A token is needed: open the page with ?token=…'}\n", status_code=401
        )

    def _fits(self, said: str) -> bool:
        return self._token is not None and hmac.compare_digest(said.encode(), self._token.encode())


def _is_own(host: str) -> bool:
    """Whether it is an IP address or localhost. Under another name, a foreign page could read this one (DNS rebinding)."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def pages(store: Path, token: str | None = None) -> Starlette:
    """The application that shows this store."""
    templates = Jinja2Templates(directory=HERE / "templates")
    templates.env.filters |= {"when": _when, "span": _span}
    templates.env.filters["bytes"] = lambda count: human_bytes(count).replace(" ", "\xa0")
    templates.env.filters["grouped"] = lambda number: f"{number:,}".replace(",", "\u202f")
    templates.env.trim_blocks = templates.env.lstrip_blocks = True

    def page(template: str, context: Callable[[Request], dict[str, Any]]) -> Callable[[Request], Response]:
        return lambda request: templates.TemplateResponse(request, template, context(request))

    def unusable(request: Request, error: Exception) -> Response:
        status = 404 if isinstance(error, UsageError) else 503
        return templates.TemplateResponse(request, "error.html", {"text": str(error)}, status_code=status)

    async def events(request: Request) -> Response:
        return StreamingResponse(_changes(store, request), media_type="text/event-stream")

    def asked(request: Request) -> dict[str, str]:
        return dict(request.query_params)

    return Starlette(
        routes=[
            Route("/", page("overview.html", lambda _: values.overview(store))),
            Route("/runs", page("runs.html", lambda request: values.runs(store, asked(request)))),
            Route("/run/{name}", page("run.html", lambda request: values.one_run(store, **request.path_params))),
            Route("/studies", page("studies.html", lambda _: values.studies(store))),
            Route("/study/{name:path}", page("study.html", lambda request: values.study(store, **request.path_params))),
            Route("/notices", page("notices.html", lambda request: values.notices(store, asked(request)))),
            Route("/compare", page("compare.html", lambda r: values.compared(store, r.query_params.getlist("run")))),
            Route("/events", events),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        middleware=[Middleware(_Guard, token=token)],
        exception_handlers={UsageError: unusable, StorageError: unusable},
    )


def _when(said: str | None) -> str:
    """A time of the store, to the second, in UTC."""
    return "?" if not said else said[:19].replace("T", " ")


def _span(seconds: float) -> str:
    """A duration in its two largest units."""
    if seconds < 60:
        return f"{seconds:.2g}\xa0s" if seconds < 9.95 else f"{seconds:.0f}\xa0s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts = [
        (int(seconds % before // size), unit)
        for before, (unit, size) in zip((1e12, 86400, 3600, 60), units, strict=True)
    ]
    first = next(i for i, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count}\xa0{unit}" for count, unit in parts[first : first + 2] if count)


async def _changes(store: Path, request: Request) -> AsyncIterator[str]:
    """An event after each write to the store, until the browser disconnects."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=5.0, check_same_thread=False)) as db:
        seen = None
        yield "retry: 2000\n\n"
        while not await request.is_disconnected():
            (version,) = db.execute("pragma data_version").fetchone()
            if version != seen and seen is not None:
                yield "data: changed\n\n"
            seen = version
            await asyncio.sleep(LOOK)


def bound(address: str, token: str | None, option: str = "--web") -> socket.socket:
    """A listening socket; ``option`` names the option of the address in errors."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{option} {address}: expected HOST:PORT, as in 127.0.0.1:7601.")
    if not is_loopback(address) and not token:
        raise UsageError(
            f"{option} {address} can be reached from elsewhere: set a token (--web-token-file), and put TLS before it."
        )
    try:
        return socket.create_server((host.strip("[]"), int(port)))
    except OSError as error:
        raise UsageError(f"{option} {address}: cannot listen there: {why_not(error, port, option)}") from None


def server_of(store: Path, token: str | None) -> uvicorn.Server:
    """A configured server."""
    configuration = uvicorn.Config(
        pages(store, token), log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=1
    )
    return uvicorn.Server(configuration)


def show(address: str, store: Path, token: str | None) -> Callable[[], None]:
    """Serve the pages in a thread; the returned function ends it."""
    listening = bound(address, token)
    server = server_of(store, token)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="web", daemon=True)
    thread.start()

    def end() -> None:
        server.should_exit = True
        thread.join(5.0)
        listening.close()

    return end
