"""Settings and database of a process, opened together."""

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from records import database as databases
from records.storage.connections import DEFAULT_LIMITS, Limits
from tuner.errors import RequestError
from tuner.settings import Settings, read_settings

_LOG = logging.getLogger("tuner.context")
# Entries of a data directory.
_DATABASE = "tuner.db"
_FOLDERS = {
    "archives", "cache", "engines", "libraries", "logs", "models", "packs", "references", "scratch",
    "tmp", "uploads",
}  # fmt: skip


@dataclass(frozen=True)
class Context:
    """Settings and database of a process.

    Attributes:
        engine: Connections to the database.
        sessions: Factory of sessions that write.
        readers: Factory of sessions that only read.
    """

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
    engine: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Iterator[Context]:
    """Read the settings and open the database; None leaves a setting to its other sources.

    An older schema is upgraded only in the default database, and only while no other process has
    it open. ``limits`` are those on connections to the database.

    Raises:
        RequestError: If the data directory cannot be written.
        RecordsError: If the database cannot be used.
    """
    settings = read_settings(
        {
            "database": database,
            "data_dir": data_dir,
            "rpc": rpc,
            "engine": engine,
        }
    )
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_private(settings.data_dir, settings.database)
    except OSError as error:
        raise RequestError(
            f"cannot write the data directory {settings.data_dir}: {error.strerror}"
        ) from error
    upgrade: databases.Upgrade = "alone" if settings.owns_database else "never"
    connected = databases.open_database(settings.database, limits, upgrade=upgrade)
    try:
        yield Context(
            settings,
            connected,
            databases.sessions(connected),
            databases.sessions(connected, read_only=True),
        )
    finally:
        connected.dispose()


def _make_private(folder: Path, database: str) -> None:
    """Keep other users out of a data directory, and its group unless new files inherit it.

    A folder that has, or may have, other uses keeps its mode.

    Args:
        database: URL of the database, whose file may be in it.
    """
    status = folder.stat()
    others = stat.S_IRWXO if status.st_mode & stat.S_ISGID else stat.S_IRWXO | stat.S_IRWXG
    if not status.st_mode & others:
        return
    is_own = status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX
    # SQLite adds files whose names begin with that of the database.
    files = (_DATABASE, Path(database.partition("?")[0]).name)
    names = os.listdir(folder)  # noqa: PTH208
    if is_own and all(name in _FOLDERS or name.startswith(files) for name in names):
        with suppress(OSError):  # a read-only root file system of a container
            folder.chmod(stat.S_IMODE(status.st_mode) & ~others)
    elif status.st_mode & stat.S_IRWXO:
        _warn_of(folder)


@cache
def _warn_of(folder: Path) -> None:
    _LOG.warning(
        "other users may enter the data directory %s, which has other files too: models and "
        "libraries belong in a folder of their own",
        folder,
    )
