"""The tuning loop's fixtures: warm toy workers and an empty database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from records import database
from tests.engines import toy
from tests.engines.toy_network import Workshop
from tuner.executors.local import LocalExecutor
from tuner.settings import Settings


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalExecutor]:
    """Two builders and a runner for the toy engine, kept warm."""
    folder = tmp_path_factory.mktemp("workers")
    # They serve the data directories of all tests, which one sandbox would hide.
    with LocalExecutor(Settings("", folder, toy.NAME, 2, worker_sandbox="off")) as started:
        yield started


@pytest.fixture
def workshop(workers: LocalExecutor, tmp_path: Path) -> Iterator[Workshop]:
    """An empty database beside the workers."""
    engine = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    yield Workshop(database.sessions(engine), tmp_path, workers)
    engine.dispose()
