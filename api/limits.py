"""How much a client may send: requests a second, and bytes of a body."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import Message, Receive, Scope

from api.errors import Problem
from api.routes import PREFIX
from api.settings import MIB

_SMALL_BODY = MIB
# These receive nothing before they know who sends it.
_TAKE_FILES = (f"{PREFIX}/tune", f"{PREFIX}/records", "/jobs")
# Of a form, beside its files.
_FORM_BYTES = MIB
_SILENT_SECS = 60.0
_BURST_SECS = 2.0
_MOST_CLIENTS = 10_000
#: What a request that changes something costs, in requests that only read.
WRITE_COST = 5.0


@dataclass
class Buckets:
    """A token bucket a client; each holds two seconds of its rate.

    Attributes:
        rate: Requests a second; 0 is no limit.
        clock: Seconds.
    """

    rate: float
    clock: Callable[[], float] = time.monotonic
    _levels: dict[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, client: str, cost: float = 1.0) -> float:
        """Take a request's cost; returns 0, or the seconds to wait until there is enough."""
        if not self.rate:
            return 0.0
        most, at = max(self.rate * _BURST_SECS, WRITE_COST), self.clock()
        level, before = self._levels.get(client, (most, at))
        level = min(level + (at - before) * self.rate, most)
        if level < cost:
            self._levels[client] = (level, at)
            return (cost - level) / self.rate
        if len(self._levels) >= _MOST_CLIENTS:
            self._forget(at)
        self._levels[client] = (level - cost, at)
        return 0.0

    def _forget(self, at: float) -> None:
        """Forget those whose buckets are full again; if nobody's is, everybody starts anew."""
        recent = {key: kept for key, kept in self._levels.items() if at - kept[1] < _BURST_SECS}
        self._levels = recent if len(recent) < _MOST_CLIENTS else {}


def check_rate(buckets: Buckets, client: str, scope: Scope) -> None:
    """Refuse a request of a client that makes too many.

    Raises:
        Problem: With the seconds to wait.
    """
    cost = 1.0 if scope["method"] in ("GET", "HEAD") else WRITE_COST
    if wait := buckets.take(client, cost):
        seconds = str(math.ceil(wait))
        raise Problem("rate", f"{client} sent too many requests", headers={"retry-after": seconds})


def body_limit(path: str, max_upload_bytes: int) -> int:
    """Return how large the body of a request may be: files may, everything else is small.

    Forms are read before it is known who sends them, except where files are taken.
    """
    return max_upload_bytes + _FORM_BYTES if path in _TAKE_FILES else _SMALL_BODY


def limited(receive: Receive, length: str | None, limit: int) -> Receive:
    """Return a ``receive`` that counts what arrives, whatever length was announced.

    Raises:
        Problem: At once if more was announced than may be; later if more arrives, or nothing
            does for a minute.
    """
    if length is not None and (not length.isdecimal() or int(length[:20]) > limit):
        raise _too_large(limit)
    n_bytes, is_whole = 0, False

    async def counted() -> Message:
        nonlocal n_bytes, is_whole
        if is_whole:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), _SILENT_SECS)
        except TimeoutError as error:
            raise Problem("too-slow", f"no byte in {_SILENT_SECS:.0f} s") from error
        n_bytes += len(message.get("body", b""))
        if n_bytes > limit:
            raise _too_large(limit)
        is_whole = not message.get("more_body", False)
        return message

    return counted


def _too_large(limit: int) -> Problem:
    return Problem("too-large", f"a body may have {limit} bytes here", limit=limit)
