"""Copies of a database that other processes use at the same time, and checks of its contents."""

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL, Engine, text

from records.database import redact
from records.errors import DatabaseUnusable

_DUMP = "pg_dump"
# Parts of a URL that libpq reads from the environment instead, where no other user sees them.
_PASSWORD = "PGPASSWORD"


def write_backup(engine: Engine, path: Path, environ: Mapping[str, str] | None = None) -> None:
    """Write a consistent copy of a database to a new file, complete or not at all.

    SQLite is copied in one read transaction, which keeps no writer waiting, and the copy is
    checked. PostgreSQL is dumped by ``pg_dump`` in its custom format.

    Args:
        path: File to write; it must not exist.
        environ: Environment of ``pg_dump``; that of the process by default.

    Raises:
        DatabaseUnusable: If the copy is damaged, or ``pg_dump`` is missing or fails.
        FileExistsError: If the file exists.
        OSError: If the file cannot be written.
    """
    if path.exists():
        raise FileExistsError(17, "exists already; a backup replaces no file", str(path))
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent or Path())
    os.close(descriptor)
    scratch = Path(name)
    try:
        if engine.dialect.name == "sqlite":
            _copy_sqlite(engine, scratch)
        else:
            _dump_postgres(engine.url, scratch, os.environ if environ is None else environ)
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        # A link, unlike a rename, fails if another process has made the file in between.
        path.hardlink_to(scratch)
    finally:
        scratch.unlink()
    _sync_folder(path.parent)


def find_damage(engine: Engine) -> str:
    """Return the first damage that SQLite finds in its file; empty for none.

    It reads the whole file. PostgreSQL checks its pages itself, with ``pg_amcheck``.
    """
    if engine.dialect.name != "sqlite":
        return ""
    with engine.execution_options(sqlite_begin="BEGIN").connect() as connection:
        result = connection.execute(text("PRAGMA integrity_check(1)")).scalar_one()
        if result != "ok":
            return str(result)
        dangling = connection.execute(text("PRAGMA foreign_key_check")).first()
    return "" if dangling is None else f"a row of {dangling[0]} refers to a missing row"


def _copy_sqlite(engine: Engine, path: Path) -> None:
    source = engine.raw_connection()
    try:
        with closing(sqlite3.connect(path)) as copy:
            driver = source.driver_connection
            if driver is None:
                raise DatabaseUnusable("the database has no connection")
            # In steps, the copy would begin again whenever another process writes.
            driver.backup(copy, pages=-1)
            # A file in WAL mode could not be opened in a folder without write access.
            copy.execute("PRAGMA journal_mode=DELETE").fetchall()
            (result,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
    finally:
        source.close()
    if result != "ok":
        raise DatabaseUnusable(f"the copy is damaged, as the database may be: {result}")


def _dump_postgres(url: URL, path: Path, environ: Mapping[str, str]) -> None:
    program = shutil.which(_DUMP, path=environ.get("PATH"))
    plain = url.set(drivername="postgresql", password=None)
    shown = redact(plain.render_as_string())
    if program is None:
        raise DatabaseUnusable(
            f"{_DUMP} is not installed here: install PostgreSQL's client programs, or run"
            f" `{_DUMP} --format custom` where they are, to back up {shown}"
        )
    variables = {**environ, **({_PASSWORD: str(url.password)} if url.password else {})}
    command = [program, "--format=custom", f"--file={path}", plain.render_as_string()]
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = " ".join(result.stderr.split()) or f"status {result.returncode}"
        raise DatabaseUnusable(f"cannot back up {shown}: {reason}")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder or Path(), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
