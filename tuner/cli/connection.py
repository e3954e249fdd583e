"""The tuner server that the commands of this process use, if one is named."""

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
    """URL and API token of a server; the token is never shown."""

    url: str
    token: str | None = field(default=None, repr=False)


_LOCAL_OPTIONS = {"--database": "database", "--data-dir": "data_dir"}
_WORKER_OPTIONS = {"--rpc": "rpc", "--engine": "engine"}
_chosen: ContextVar[Connection | None] = ContextVar("connection", default=None)


def choose(connection: Connection | None) -> None:
    """Make the commands of this process use a server, or none."""
    _chosen.set(connection)


def chosen() -> Connection | None:
    """Return the server that was chosen; None without one."""
    return _chosen.get()


@contextmanager
def connect(overrides: "SettingOverrides") -> "Iterator[TunerClient]":
    """Open a client of the chosen server.

    Args:
        overrides: Settings given on the command line; none of them applies to a server.

    Raises:
        RequestError: If a setting is given, or no server was chosen.
    """
    from tuner.client import TunerClient

    server = _chosen.get()
    if server is None:
        raise RequestError("this needs a server; name it with --server URL or TUNER_SERVER")
    settings = {key for key, value in overrides.items() if value is not None}
    for option, key in _LOCAL_OPTIONS.items():
        if key in settings:
            raise RequestError(
                f"{option} applies to this machine, but the records are at {server.url}; "
                f"leave out {option}, or --server and TUNER_SERVER"
            )
    for option, key in _WORKER_OPTIONS.items():
        if key in settings:
            raise RequestError(
                f"{option} is a setting of the worker at {server.url}; leave it out, or give it "
                "to `tuner worker` there"
            )
    with TunerClient(server.url, server.token) as client:
        yield client


def refuse(command: str) -> None:
    """Reject a command that works on this machine alone.

    Raises:
        RequestError: If a server was chosen.
    """
    if (server := _chosen.get()) is not None:
        raise RequestError(
            f"`tuner {command}` works on this machine alone, not at {server.url}; "
            "leave out --server and TUNER_SERVER"
        )
