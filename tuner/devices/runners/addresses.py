"""What the setting ``rpc`` says: the keys of TVM's RPC trackers under which devices are found."""

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, urlsplit

from tuner.errors import RequestError

_FORM = "HOST:PORT/KEY[?priority=N&session_timeout=SECS]"
# The protocol separates a key from what follows it by spaces and colons.
_KEY = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class RpcAddress:
    """Equal devices behind one tracker.

    Attributes:
        host: Of the tracker.
        port: Of the tracker.
        key: Under which the servers of these devices are registered.
        priority: Of our requests: the tracker serves higher ones first.
        session_timeout: Seconds that a session may last at most; None: as long as its call may.
    """

    host: str
    port: int
    key: str
    priority: int = 1
    session_timeout: int | None = None

    @property
    def tracker(self) -> str:
        """The tracker's address, for people."""
        return f"{self.host}:{self.port}"


def parse_addresses(text: str) -> tuple[RpcAddress, ...]:
    """Read the addresses of a setting, separated by commas.

    Raises:
        RequestError: If one is malformed, or a key is named twice.
    """
    found = tuple(_parse(each.strip()) for each in text.split(",") if each.strip())
    if not found:
        raise RequestError(f"rpc names no address; one is {_FORM}")
    keys = [address.key for address in found]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise RequestError(f"rpc names the key {twice[0]!r} twice; a key is one kind of device")
    return found


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
    least = {"priority": None, "session_timeout": 1}
    options: dict[str, int] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in least:
            raise RequestError(f"rpc address {text!r} sets {name!r}; it may set {', '.join(least)}")
        options[name] = _number(name, value, least[name])
    return options


def _number(name: str, value: str, least: int | None) -> int:
    if not re.fullmatch(r"-?\d{1,6}", value) or (least is not None and int(value) < least):
        bound = "" if least is None else f" from {least} up"
        raise RequestError(f"{name} of an rpc address must be a whole number{bound}, got {value!r}")
    return int(value)
