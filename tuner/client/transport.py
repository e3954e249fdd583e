"""HTTP requests to one service, with authentication, retries and translated errors."""

import ipaddress
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from tuner.client.errors import (
    DISK_FULL,
    QUOTA_KINDS,
    ConnectError,
    ServerError,
    ServiceError,
    error_of,
)
from tuner.client.models import read_answer
from tuner.errors import RequestError, summary

_PREFIX = "/api/v1"
_MAX_ATTEMPTS = 4
_FIRST_DELAY_SECS = 0.3
# A service restarts within seconds; a longer delay would double the wait of its clients.
_MAX_DELAY_SECS = 3.0
_MAX_RETRY_AFTER_SECS = 60.0
_RETRYABLE_STATUSES = (429, 502, 503, 504)
Answer = TypeVar("Answer")
Shape = TypeVar("Shape")


# Packets that are lost are sent again for minutes; a new connection may find another way.
_CONNECT_TIMEOUT_SECS = 10.0


class Transport:
    """HTTP connections to one service; not thread-safe.

    Every request may be sent twice, so requests that create something carry a key.
    """

    def __init__(self, url: str, token: str | None, timeout_secs: float) -> None:
        self.url = _checked(url)
        parsed = httpx.URL(self.url)
        is_loopback = _is_loopback(parsed.host)
        self._http = httpx.Client(
            headers=_headers(token),
            timeout=httpx.Timeout(timeout_secs, connect=min(timeout_secs, _CONNECT_TIMEOUT_SECS)),
            # A proxy cannot reach a loopback address of this machine.
            trust_env=not is_loopback,
            # Reading certificates takes 40 ms, and such a connection has none.
            verify=not is_loopback or parsed.scheme == "https",
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def read(self, kind: type[Shape], method: str, path: str, **options: Any) -> Shape:
        """Send a request and read its JSON answer into a shape.

        Raises:
            ServiceError: If the request fails; see :mod:`tuner.client.errors`.
        """
        return read_answer(kind, self.request(method, path, **options).content)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request, and repeat it while the service does not answer for a moment.

        Args:
            method: HTTP method.
            path: Path below the API; with a leading ``//``, path below the service itself.
            options: Options of ``httpx.Client.request``.

        Raises:
            ServiceError: If the request fails; see :mod:`tuner.client.errors`.
        """
        return self.retried(lambda: self.send(method, path, **options))

    def retried(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        """Call a function until it raises no retryable error, a few times at most."""
        for attempt in range(_MAX_ATTEMPTS - 1):
            try:
                return send()
            except ServiceError as error:
                if not is_retryable(error):
                    raise
                time.sleep(delay_secs(attempt, error.retry_secs))
        return send()

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """Send a request once, and return its answer while it arrives.

        Raises:
            ServiceError: If the request fails, or the connection breaks.
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
            raise ServerError(f"{self.url} redirects to {there}; use that URL")
        if response.headers.get("content-type", "").startswith("text/html"):
            raise ServerError(
                f"{self.url} answers with a web page; check that the URL is that of a tuner service"
            )
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


def call_until_available(call: Callable[[], Answer], timeout_secs: float) -> Answer:
    """Repeat a call while the service is unavailable.

    Raises:
        ServiceError: If the service is unavailable for longer than ``timeout_secs``, or rejects
            the request.
    """
    started, n_failures = time.monotonic(), 0
    while True:
        try:
            return call()
        except ServiceError as error:
            if not is_transient(error) or time.monotonic() - started > timeout_secs:
                raise
            time.sleep(delay_secs(n_failures, error.retry_secs))
            n_failures += 1


def is_transient(error: ServiceError) -> bool:
    """Return whether a service that answered before may answer again soon."""
    return is_retryable(error) or isinstance(error, ConnectError)


def is_retryable(error: ServiceError) -> bool:
    """Return whether the same request may succeed in a moment."""
    if error.kind in (*QUOTA_KINDS, DISK_FULL):
        return False
    return error.kind == "broken" or error.status in _RETRYABLE_STATUSES


def delay_secs(n_failures: int, retry_after: float | None = None) -> float:
    """Return the delay before the next attempt, seconds; Retry-After takes precedence."""
    if retry_after is not None:
        return min(retry_after, _MAX_RETRY_AFTER_SECS)
    # Randomised, because a service that restarts has many clients.
    delay = min(_FIRST_DELAY_SECS * 2.0**n_failures, _MAX_DELAY_SECS)
    return delay * random.uniform(0.5, 1.0)


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
        raise RequestError("the token is malformed: expected printable ASCII characters")
    return {"authorization": f"Bearer {token}"}


def _checked(url: str) -> str:
    """Return the URL of a service without query, fragment and API path."""
    try:
        parsed = httpx.URL(url.strip())
    except (httpx.InvalidURL, ValueError) as error:
        raise RequestError(f"{url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise RequestError(f"{url!r} is not the URL of a service: expected http://HOST:PORT")
    if parsed.userinfo:
        raise RequestError("the URL of a service cannot contain a password: use a token")
    return str(parsed.copy_with(query=None, fragment=None)).rstrip("/").removesuffix(_PREFIX)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
