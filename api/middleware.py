"""What is around every request: limits before it, headers and a count after it."""

import logging
import time
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.app_state import State
from api.auth import address_of, secret_of
from api.csrf import check_host, check_same_origin
from api.errors import Problem, as_problem
from api.exception_handlers import answer
from api.limits import body_limit, check_rate, limited

_logger = logging.getLogger("api.access")
# Set where a route did not say otherwise: nothing of an answer is ever run, framed or kept.
_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_PROBES = ("/healthz", "/readyz")
_CLIENT_LEFT = 499


class Frame:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; whatever goes wrong is answered with a problem document."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state: State = scope["app"].state.service
        started, status = time.perf_counter(), 0

        async def dressed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, _checked(scope, receive, state), dressed)
        except ClientDisconnect:
            status = status or _CLIENT_LEFT
        except Exception as error:
            if status:
                # Too late to say so: the client sees that the answer was cut off.
                as_problem(error)
                raise
            await answer(Request(scope, receive), error)(scope, receive, dressed)
        finally:
            _note(state, scope, status, time.perf_counter() - started)


def _checked(scope: Scope, receive: Receive, state: State) -> Receive:
    """Check what can be known before a request is read.

    Raises:
        Problem: If it is refused.
    """
    if scope["path"] in _PROBES:
        return receive
    connection = HTTPConnection(scope)
    if not state.settings.needs_tokens:
        check_host(connection)
    check_same_origin(connection)
    check_rate(state.buckets, _client(connection, state), scope)
    _check_text(scope)
    if scope["method"] in ("GET", "HEAD"):
        return receive
    limit = body_limit(scope["path"], state.settings.max_upload_bytes)
    return limited(receive, connection.headers.get("content-length"), limit)


def _client(connection: HTTPConnection, state: State) -> str:
    """Name who is counted: a token that was good lately, or else an address."""
    secret, _ = secret_of(connection)
    name = None if secret is None else state.tokens.remembered(secret)
    return f"token {name}" if name is not None else f"address {address_of(connection)}"


def _check_text(scope: Scope) -> None:
    # PostgreSQL stores and compares no NUL; no name of ours holds one.
    if b"%00" in scope["query_string"] or "\x00" in scope["path"]:
        raise Problem("bad-request", "the address contains NUL")


def _note(state: State, scope: Scope, status: int, secs: float) -> None:
    route = template_of(scope)
    state.metrics.observe(scope["method"], route, status, secs)
    if _logger.isEnabledFor(logging.DEBUG):
        said: dict[str, Any] = {"method": scope["method"], "route": route, "status": status}
        _logger.debug("%(method)s %(route)s %(status)s", said)


def template_of(scope: Scope) -> str:
    """Return the path of the route that served a request, with its parameters unfilled."""
    route = scope.get("route")
    path = getattr(route, "path", None)
    return path if isinstance(path, str) and path else "other"
