"""API servers in threads of this process, on SQLite or each kind of database in turn."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from sqlalchemy.orm import Session, sessionmaker

from api.__main__ import make_server
from api.settings import ApiSettings
from records import database
from tests.waiting import wait_for
from tuner.settings import Settings

LOOPBACK = "http://127.0.0.1"
#: Marks tests of what the kinds do each in its way: streams, lists, locks, and values they refuse.
on_each_database = pytest.mark.parametrize("migrated", ["sqlite", "postgresql"], indirect=True)


@dataclass(frozen=True)
class Served:
    """A running server: a client of it, its database and its data directory."""

    client: httpx.Client
    sessions: sessionmaker[Session]
    data_dir: Path


@pytest.fixture
def migrated(request: pytest.FixtureRequest) -> str:
    """URL of a database with tables and no rows: SQLite, unless a test names the kinds."""
    is_postgres = getattr(request, "param", "sqlite") == "postgresql"
    url: str = request.getfixturevalue("migrated_postgres" if is_postgres else "migrated_sqlite")
    return url


@pytest.fixture
def settings(migrated: str, tmp_path: Path) -> ApiSettings:
    """Settings of an API on loopback, on the database of the test."""
    return ApiSettings(Settings(migrated, tmp_path / "data", "tests.engines.toy", 1))


@pytest.fixture
def served(settings: ApiSettings) -> Iterator[Served]:
    """A server on loopback, on the database of the test."""
    with serving(settings) as opened:
        yield opened


@pytest.fixture
def quick(migrated_sqlite: str, tmp_path: Path) -> ApiSettings:
    """Settings on SQLite, for tests that do not depend on the database."""
    return ApiSettings(Settings(migrated_sqlite, tmp_path / "data", "tests.engines.toy", 1))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on SQLite for all tests of a module, which share its database."""
    folder = tmp_path_factory.mktemp("shared")
    settings = Settings(f"sqlite:///{folder}/tuner.db", folder / "data", "tests.engines.toy", 1)
    with serving(ApiSettings(settings)) as opened:
        yield opened


@contextmanager
def serving(settings: ApiSettings, **headers: str) -> Iterator[Served]:
    """Run a server in a thread during the block, on a free port."""
    server = make_server(replace(settings, port=0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive(), "it did not stop"

    with ExitStack() as stack:
        # One that fails to start would keep its folder of temporary files for later tests.
        stack.callback(stop)
        wait_for(lambda: server.started or not thread.is_alive(), 120.0)
        assert thread.is_alive(), "it did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        engine = database.open_database(settings.tuner.database)
        stack.callback(engine.dispose)
        client = stack.enter_context(
            httpx.Client(base_url=f"{LOOPBACK}:{port}", headers=headers, timeout=20, verify=False)
        )
        yield Served(client, database.sessions(engine), settings.data_dir)
