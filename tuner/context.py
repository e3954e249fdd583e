"""What a process of ours opens first: settings and the database."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from records import database as databases
from tuner.errors import RequestError
from tuner.settings import Settings, read_settings


class SettingOverrides(TypedDict, total=False):
    """Settings that are given by hand; see :class:`tuner.settings.Settings`. None is not given."""

    database: str | None
    data_dir: str | Path | None
    rpc: str | None
    ray_address: str | None
    engine: str | None


@dataclass(frozen=True)
class Context:
    """The settings of this process, and sessions to read with and to write with."""

    settings: Settings
    engine: Engine
    sessions: sessionmaker[Session]
    readers: sessionmaker[Session]


@contextmanager
def open_context(
    database: str | None = None,
    data_dir: str | Path | None = None,
    *,
    rpc: str | None = None,
    ray_address: str | None = None,
    engine: str | None = None,
) -> Iterator[Context]:
    """Open what a command works with, and close it after; None leaves a setting as it is.

    Raises:
        RequestError: If the data directory cannot be written.
        RecordsError: If the database cannot be used.
    """
    settings = read_settings(
        {
            "database": database,
            "data_dir": data_dir,
            "rpc": rpc,
            "ray_address": ray_address,
            "engine": engine,
        }
    )
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"cannot write the data directory {settings.data_dir}: {error.strerror}"
        ) from error
    connected = databases.open_database(settings.database)
    try:
        yield Context(
            settings,
            connected,
            databases.sessions(connected),
            databases.sessions(connected, read_only=True),
        )
    finally:
        connected.dispose()
