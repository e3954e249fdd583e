"""Which service the commands of this process talk to, if any."""

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tuner.client import TunerClient
    from tuner.settings import SettingOverrides


@dataclass(frozen=True)
class Connection:
    """A service by its URL, and what opens it; the token is never shown."""

    url: str
    token: str | None = field(default=None, repr=False)


_OF_A_WORKER = {"--rpc": "rpc", "--ray-address": "ray_address", "--engine": "engine"}
_chosen: ContextVar[Connection | None] = ContextVar("connection", default=None)


def choose(connection: Connection | None) -> None:
    """Let the commands of this process talk to a service, or to none."""
    _chosen.set(connection)


def chosen() -> Connection | None:
    """Return the service that was named, if one was."""
    return _chosen.get()


@contextmanager
def connect(overrides: "SettingOverrides") -> "Iterator[TunerClient]":
    """Open the service that was named; ``overrides`` is what was given beside it.

    Raises:
        RequestError: If something that the service decides is given beside it.
    """
    from tuner.client import TunerClient

    service = _chosen.get()
    if service is None:
        raise RequestError("no service was named; --server URL names one")
    given = {key: value for key, value in overrides.items() if value is not None}
    for option, key in (("--database", "database"), ("--data-dir", "data_dir")):
        if key in given:
            raise RequestError(
                f"{option} is of this machine, and the records are those of {service.url}; "
                f"leave out {option}, or --server and TUNER_SERVER"
            )
    for option, key in _OF_A_WORKER.items():
        if key in given:
            raise RequestError(
                f"{option} says how to work, which {service.url} decides; give it to its "
                "tuner worker"
            )
    with TunerClient(service.url, service.token) as client:
        yield client


def refuse(command: str) -> None:
    """Refuse a command that has no meaning on a service.

    Raises:
        RequestError: If a service was named.
    """
    if (service := _chosen.get()) is not None:
        raise RequestError(f"tuner {command} works on this machine, not on {service.url}")
