"""Counts of transactions and statements."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from benchmarks.simulation.clock import VirtualClock
from benchmarks.simulation.database_load import DatabaseMeter
from records import database


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Return an empty database."""
    opened = database.open_database(f"sqlite:///{tmp_path / 'records.db'}")
    yield opened
    opened.dispose()


def test_transactions_and_statements_are_counted(engine: Engine) -> None:
    """Read-only transactions count too; BEGIN is a statement."""
    meter = DatabaseMeter(VirtualClock())
    meter.watch(engine)
    sessions = database.sessions(engine)

    for _ in range(2):
        with sessions.begin() as session:
            session.execute(text("SELECT 1"))
            session.execute(text("SELECT 2"))
    with sessions() as session:
        session.execute(text("SELECT 3"))

    assert meter.load.n_transactions == 3
    assert meter.load.n_statements == 3 + 5
    assert meter.load.cpu_secs > 0.0


def test_waits_for_a_file_are_not_charged(engine: Engine) -> None:
    """They cannot be distinguished from waits for a core."""
    clock = VirtualClock(lambda: 0.0)
    meter = DatabaseMeter(clock)
    meter.watch(engine)

    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE more (id INTEGER)"))

    assert meter.load.wait_secs >= 0.0
    assert clock.now() == 0.0
