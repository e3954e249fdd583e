"""A database and settings for the parts of a worker, without processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from records import database
from tests.engines import toy
from tuner.context import Context
from tuner.settings import Settings


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the locks of this machine's CPU apart from those of other tests."""
    monkeypatch.setenv("TUNER_RUNTIME_DIR", str(tmp_path / "locks"))


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    """A new database and data directory, for the toy engine."""
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    engine = database.open_database(url)
    settings = Settings(url, tmp_path, toy.NAME, 1)
    yield Context(
        settings, engine, database.sessions(engine), database.sessions(engine, read_only=True)
    )
    engine.dispose()
