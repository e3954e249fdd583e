"""Middlewares around every request: metrics, headers, error answers, checks and body limits."""

import logging
import time
from contextlib import ExitStack

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.app_state import state_of
from api.clients.auth import SUBJECT, address_of, client_name, secret_of
from api.clients.csrf import check_direct, check_host, check_one_host, check_same_origin
from api.clients.limits import body_limit, check_rate, limited
from api.errors import KINDS, PROBLEM, Problem, as_problem
from api.load.fair_semaphore import PEER, SENDER, Peer, Sender
from api.load.protocol import PROBES
from api.load.shared_answers import SharedAnswers
from api.routes import REMOTE
from api.waiting import WAITED
from api.web.errors import answer

_LOG = logging.getLogger("api.access")
# Defaults that a route may replace: no answer is executed, framed or cached.
_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_HSTS = "max-age=31536000"
# Requests of programs and of open pages, which would hide people's requests.
_FREQUENT = (
    *(*PROBES, "/metrics", "/favicon.ico", "/static/{digest}/{name}"),
    *(f"{REMOTE}/{name}" for name in ("lease", "answers", "files/{digest}")),
    *(f"{REMOTE}/packs/{name}" for name in ("lease", "results")),
)
_REFUSALS = (401, 403, 421, 429)
_CLIENT_CLOSED_REQUEST = 499
_MAX_PATH_CHARS = 300
_MAX_AGENT_CHARS = 100


class _Middleware:
    """Base of a middleware, which sees HTTP requests only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.handle(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an HTTP request."""
        raise NotImplementedError


class RequestMetrics(_Middleware):
    """Counts requests by route and status, and writes the access log.

    Refusals have the level WARNING, frequent requests of programs DEBUG, all others INFO.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and observe its status and duration."""
        started, status = time.perf_counter(), _CLIENT_CLOSED_REQUEST

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observed)
        finally:
            route, secs = _route_template(scope), time.perf_counter() - started
            worked = secs - scope.get(WAITED, 0.0)
            state_of(HTTPConnection(scope)).metrics.observe(scope["method"], route, status, worked)
            _log_request(scope, route, status, secs)


class SecurityHeaders(_Middleware):
    """Adds security headers that the route did not set."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request with complete headers."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if scope["scheme"] == "https":
                    headers.setdefault("strict-transport-security", _HSTS)
            await send(message)

        await self._app(scope, receive, with_headers)


class ErrorAnswers(_Middleware):
    """Answers every exception with a problem, as a document or as a page."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; an error after the start of the answer cuts it off."""
        has_started = False

        async def noted(message: Message) -> None:
            nonlocal has_started
            has_started = has_started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except ClientDisconnect:
            return
        except Exception as error:
            if has_started:
                as_problem(error)  # logs what is unexpected
                raise
            await answer(Request(scope, receive), error)(scope, receive, send)


class RequestChecks(_Middleware):
    """Rejects requests by their head: wrong host, other site, too many, or NUL in the address."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that passes all checks; probes are not checked.

        Raises:
            Problem: If a check fails.
            RecordsError: If the schema is not that of this process.
        """
        if scope["path"] not in PROBES:
            connection = HTTPConnection(scope)
            state = state_of(connection)
            if state.readiness.schema_error is not None:
                raise state.readiness.schema_error
            check_one_host(connection)
            if not state.settings.needs_tokens:
                check_host(connection)
                check_direct(connection)
            check_same_origin(connection)
            # Name the client whose rate is limited: a token that was valid recently, or an address.
            secret, _ = secret_of(connection)
            name = None if secret is None else state.tokens.remembered(secret)
            if name is not None:
                connection.scope[SUBJECT] = name
            client = client_name(connection, name)
            check_rate(state.buckets, client, scope["method"], scope["path"])
            program = (
                ""
                if state.settings.needs_tokens
                else connection.headers.get("user-agent", "")[:_MAX_AGENT_CHARS]
            )
            SENDER.set(Sender(client, scope.get(PEER) or Peer(), program))
            # PostgreSQL cannot store or compare NUL.
            if b"%00" in scope["query_string"] or "\x00" in scope["path"]:
                raise Problem("bad-request", "the address contains NUL")
        await self._app(scope, receive, send)


class BodyLimits(_Middleware):
    """Limits the size of bodies, and the time without a byte."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose body is counted while it arrives.

        Raises:
            Problem: If the announced length is over the limit, or too many bodies arrive.
        """
        if scope["method"] not in ("GET", "HEAD") and scope["path"] not in PROBES:
            connection = HTTPConnection(scope)
            state = state_of(connection)
            limit = body_limit(scope["path"], state.settings.max_upload_bytes)
            length = connection.headers.get("content-length")
            receive = limited(receive, length, limit)
            if length != "0" and (length or "transfer-encoding" in connection.headers):
                with ExitStack() as arriving:
                    arriving.enter_context(state.bodies.taken(SENDER.get().client))
                    await self._app(scope, _closing_at_end(receive, arriving), send)
                return
        await self._app(scope, receive, send)


def _closing_at_end(receive: Receive, arriving: ExitStack) -> Receive:
    """Return a ``receive`` that closes a context once the body has arrived or broken off."""

    async def closing() -> Message:
        message = await receive()
        if not message.get("more_body", False):
            arriving.close()
        return message

    return closing


#: The outermost first.
MIDDLEWARES = (
    RequestMetrics,
    SecurityHeaders,
    ErrorAnswers,
    RequestChecks,
    BodyLimits,
    SharedAnswers,
)


def install(app: FastAPI) -> None:
    """Wrap an application in all middlewares."""
    for middleware in reversed(MIDDLEWARES):
        app.add_middleware(middleware)


def _log_request(scope: Scope, route: str, status: int, secs: float) -> None:
    """Write a line of the access log; the query, which may be private, is left out."""
    problem = scope.get(PROBLEM)
    # A page without a valid token redirects to the sign-in.
    if status in _REFUSALS or (problem is not None and KINDS[problem].status in _REFUSALS):
        level = logging.WARNING
    else:
        level = logging.DEBUG if route in _FREQUENT else logging.INFO
    if not _LOG.isEnabledFor(level):
        return
    fields = {
        "method": scope["method"],
        "path": scope["path"][:_MAX_PATH_CHARS],
        "status": status,
        "secs": round(secs, 6),
        "subject": scope.get(SUBJECT),
        "address": address_of(HTTPConnection(scope)),
        **({} if problem is None else {"problem": problem}),
    }
    _LOG.log(level, "request", extra=fields)


def _route_template(scope: Scope) -> str:
    """Return the path of the route that served a request, with unfilled parameters."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) and path else "other"
