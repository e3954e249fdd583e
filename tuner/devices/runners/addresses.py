"""Addresses in the setting ``rpc``: keys of TVM's RPC trackers that devices register under."""

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, urlsplit

from tuner.errors import RequestError

_FORM = "HOST:PORT/KEY[?priority=N&session_timeout=SECS]"
# The protocol separates a key from what follows it by spaces and colons.
_KEY = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class RpcAddress:
    """Address of equal devices behind one tracker.

    Attributes:
        key: Key under which the servers of these devices are registered.
        priority: Priority of requests; the tracker serves higher ones first.
        session_timeout: Time limit of a session, seconds; None for that of its call.
    """

    host: str
    port: int
    key: str
    priority: int = 1
    session_timeout: int | None = None

    @property
    def tracker(self) -> str:
        """Address of the tracker, for people."""
        return f"{self.host}:{self.port}"


def parse_addresses(text: str) -> tuple[RpcAddress, ...]:
    """Read the addresses of a setting, separated by commas.

    Raises:
        RequestError: If one is malformed, or a key is named twice.
    """
    addresses = tuple(_parse(part.strip()) for part in text.split(",") if part.strip())
    if not addresses:
        raise RequestError(f"rpc names no address; one is {_FORM}")
    keys = [address.key for address in addresses]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise RequestError(f"rpc names the key {twice[0]!r} twice; a key is one kind of device")
    return addresses


def _parse(text: str) -> RpcAddress:
    parts = urlsplit(f"//{text}")
    try:
        port = parts.port
    except ValueError:
        port = None
    key = parts.path.removeprefix("/")
    if not parts.hostname or not port or not _KEY.fullmatch(key):
        raise RequestError(f"cannot read rpc address {text!r}; it is {_FORM}")
    return RpcAddress(parts.hostname, port, key, **_options(parts, text))


def _options(parts: SplitResult, text: str) -> dict[str, int]:
    minima = {"priority": None, "session_timeout": 1}
    options: dict[str, int] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in minima:
            raise RequestError(
                f"rpc address {text!r} sets {name!r}; it may set {', '.join(minima)}"
            )
        minimum = minima[name]
        if not re.fullmatch(r"-?\d{1,6}", value) or (minimum is not None and int(value) < minimum):
            bound = "" if minimum is None else f" from {minimum} up"
            raise RequestError(
                f"{name} of an rpc address must be a whole number{bound}, got {value!r}"
            )
        options[name] = int(value)
    return options
