"""Limits on clients: requests a second, and bytes of a body."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import Message, Receive

from api.errors import Problem
from api.routes import PREFIX, REMOTE
from api.settings import MIB

_MAX_SMALL_BODY_BYTES = MIB
# Routes that authenticate before they receive anything.
_FILE_PATHS = (f"{PREFIX}/tune", f"{PREFIX}/records", "/jobs")
# Fields of a form, in addition to its files.
_MAX_FORM_BYTES = MIB
_IDLE_TIMEOUT_SECS = 60.0
# Rate below which a body of many bytes is cut off; a small one may take a minute.
_MIN_BYTES_PER_SEC = 16 * 1024
_BURST_SECS = 2.0
_MAX_CLIENTS = 10_000
#: Cost of a request that changes something, in requests that only read.
WRITE_COST = 5.0


@dataclass
class Buckets:
    """A token bucket for each client; each holds two seconds of its rate.

    Attributes:
        rate: Requests a second; 0 for no limit.
        clock: Monotonic clock, seconds.
    """

    rate: float
    clock: Callable[[], float] = time.monotonic
    _levels: dict[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, client: str, cost: float = 1.0) -> float:
        """Take the cost of a request; return 0, or the seconds until there is enough."""
        if not self.rate:
            return 0.0
        capacity, at = max(self.rate * _BURST_SECS, WRITE_COST), self.clock()
        level, updated = self._levels.get(client, (capacity, at))
        level = min(level + (at - updated) * self.rate, capacity)
        if level < cost:
            self._levels[client] = (level, at)
            return (cost - level) / self.rate
        if len(self._levels) >= _MAX_CLIENTS:
            recent = {
                key: entry for key, entry in self._levels.items() if at - entry[1] < _BURST_SECS
            }
            self._levels = recent if len(recent) < _MAX_CLIENTS else {}
        self._levels[client] = (level - cost, at)
        return 0.0


def check_rate(buckets: Buckets, client: str, method: str, path: str) -> None:
    """Reject a request of a client that sends too many.

    Raises:
        Problem: With the seconds to wait in Retry-After.
    """
    # Several devices of one token send each a few requests a second.
    is_cheap = method in ("GET", "HEAD") or path.startswith(f"{REMOTE}/")
    cost = 1.0 if is_cheap else WRITE_COST
    if wait := buckets.take(client, cost):
        headers = {"retry-after": str(math.ceil(wait))}
        raise Problem("rate", f"{client} sent too many requests", headers=headers)


def body_limit(path: str, max_upload_bytes: int) -> int:
    """Return the maximum size of the body of a request, bytes.

    Forms are received before their sender is known, except where files are accepted, so that
    all other bodies are small.
    """
    return max_upload_bytes + _MAX_FORM_BYTES if path in _FILE_PATHS else _MAX_SMALL_BODY_BYTES


def limited(receive: Receive, length: str | None, limit: int) -> Receive:
    """Return a ``receive`` that counts bytes, whatever length was announced.

    Raises:
        Problem: At once if the announced length is over the limit; from the returned function
            if more arrives, nothing for a minute, or all of it too slowly.
    """
    if length is not None and (not length.isdecimal() or int(length[:20]) > limit):
        raise _too_large(limit)
    n_bytes, is_complete, started = 0, False, time.monotonic()

    async def counted() -> Message:
        nonlocal n_bytes, is_complete
        if is_complete:
            return await receive()
        allowed = _IDLE_TIMEOUT_SECS + n_bytes / _MIN_BYTES_PER_SEC
        left = started + allowed - time.monotonic()
        try:
            message = await asyncio.wait_for(receive(), max(min(left, _IDLE_TIMEOUT_SECS), 0.0))
        except TimeoutError as error:
            detail = f"{n_bytes} bytes of the body arrived in {allowed:.0f} s"
            raise Problem("too-slow", detail) from error
        n_bytes += len(message.get("body", b""))
        if n_bytes > limit:
            raise _too_large(limit)
        is_complete = not message.get("more_body", False)
        return message

    return counted


def _too_large(limit: int) -> Problem:
    return Problem("too-large", f"a body may have at most {limit} bytes here", limit=limit)
