"""Requests to one service: where it is, who asks, what is tried again, what errors mean."""

import ipaddress
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from tuner.client.errors import ConnectError, ServerError, ServiceError, error_of
from tuner.client.models import read_answer
from tuner.errors import RequestError, summary

_PREFIX = "/api/v1"
_ATTEMPTS = 4
_FIRST_DELAY_SECS = 0.3
# A service that starts again takes seconds; who watches a job should not wait for as long again.
_LONGEST_DELAY_SECS = 3.0
_PASSING = (429, 502, 503, 504)
Answer = TypeVar("Answer")
Shape = TypeVar("Shape")


class Transport:
    """Speaks HTTP with one service; used by one thread at a time.

    Every request of ours may be sent twice: those that create something bring a key.
    """

    def __init__(self, url: str, token: str | None, timeout_secs: float) -> None:
        self.url = _checked(url)
        self._http = httpx.Client(
            headers=_headers(token),
            timeout=timeout_secs,
            # A proxy cannot reach what listens on our own loopback.
            trust_env=not _is_loopback(httpx.URL(self.url).host),
        )

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def read(self, kind: type[Shape], method: str, path: str, **options: Any) -> Shape:
        """Send a request and read its JSON answer into a shape.

        Raises:
            ServiceError: If it fails; see :mod:`tuner.client.errors`.
        """
        return read_answer(kind, self.request(method, path, **options).content)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request, again if the service does not answer for a moment.

        Args:
            method: Of HTTP.
            path: Below the API; one that starts with ``//`` is below the service itself.
            options: As for httpx.

        Raises:
            ServiceError: If it fails; see :mod:`tuner.client.errors`.
        """
        return self.retried(lambda: self.send(method, path, **options))

    def retried(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        """Call a function until it gives no error that may pass by itself."""
        for attempt in range(_ATTEMPTS - 1):
            try:
                return send()
            except ServiceError as error:
                if not may_pass(error):
                    raise
                time.sleep(delay_secs(attempt, error.retry_secs))
        return send()

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """Send a request once and give its answer while it arrives.

        Raises:
            ServiceError: If it fails, or the connection breaks on the way.
        """
        with self._translated(), self._http.stream(method, self._at(path), **options) as response:
            if response.is_error:
                response.read()
                raise _error_in(response)
            yield response

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request once; see :meth:`request`."""
        with self._translated():
            response = self._http.request(method, self._at(path), **options)
        if response.is_error:
            raise _error_in(response)
        if response.is_redirect:
            there = response.headers.get("location", "elsewhere")
            raise ServerError(f"{self.url} redirects to {there}; name the service by that URL")
        return response

    def _at(self, path: str) -> str:
        return self.url + (path[1:] if path.startswith("//") else _PREFIX + path)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise ConnectError(
                f"cannot reach a service at {self.url}: {summary(error).rstrip('.')}",
                kind="refused",
            ) from error
        except httpx.TimeoutException as error:
            raise ConnectError(f"{self.url} did not answer in time", kind="timeout") from error
        except httpx.TransportError as error:
            raise ConnectError(
                f"the connection to {self.url} broke: {summary(error).rstrip('.')}", kind="broken"
            ) from error


def patiently(ask: Callable[[], Answer], patience_secs: float) -> Answer:
    """Ask again and again while a service that was there is gone, for so long at most.

    Raises:
        ServiceError: If it stays away, or refuses.
    """
    started, n_failures = time.monotonic(), 0
    while True:
        try:
            return ask()
        except ServiceError as error:
            if not is_passing(error) or time.monotonic() - started > patience_secs:
                raise
            time.sleep(delay_secs(n_failures, error.retry_secs))
            n_failures += 1


def is_passing(error: ServiceError) -> bool:
    """Return whether a service that was there a moment ago may be there again soon."""
    return may_pass(error) or isinstance(error, ConnectError)


def may_pass(error: ServiceError) -> bool:
    """Return whether the same request may succeed in a moment."""
    return error.kind == "broken" or error.status in _PASSING


def delay_secs(attempt: int, asked: float | None = None) -> float:
    """Return how long to wait after a number of failures, or as long as was asked for."""
    if asked is not None:
        return min(asked, 60.0)
    # Not all at once: a service that starts again has many clients.
    longest = min(_FIRST_DELAY_SECS * 2.0**attempt, _LONGEST_DELAY_SECS)
    return longest * random.uniform(0.5, 1.0)


def _error_in(response: httpx.Response) -> ServiceError:
    problem: Any = {}
    if response.headers.get("content-type", "").startswith("application/"):
        try:
            problem = response.json()
        except ValueError:
            problem = {}
    wait = response.headers.get("retry-after", "")
    return error_of(
        response.status_code,
        problem if isinstance(problem, dict) else {},
        float(wait) if wait.isdecimal() else None,
    )


def _headers(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    token = token.strip()
    if not token.isascii() or not token.isprintable() or not token:
        raise RequestError("the token has characters that no token has")
    return {"authorization": f"Bearer {token}"}


def _checked(url: str) -> str:
    """Return the URL of a service without what does not belong to it."""
    try:
        parsed = httpx.URL(url.strip())
    except (httpx.InvalidURL, ValueError) as error:
        raise RequestError(f"{url!r} is no URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise RequestError(f"{url!r} names no service: expected http://HOST:PORT")
    if parsed.userinfo:
        raise RequestError("the URL of a service holds no password: give a token")
    return str(parsed.copy_with(query=None, fragment=None)).rstrip("/").removesuffix(_PREFIX)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
