"""Tests of the ordering, durability and error ownership that the record writer guarantees."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.orm import Session

from records import database
from records.storage import connections
from tests.durability import DURABLE
from tests.records import make
from tuner.tuning.writing import record_writer
from tuner.tuning.writing.record_writer import RecordWriter, WritePolicy

Main = Callable[[RecordWriter], Coroutine[Any, Any, None]]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Yield a database with a table of notes."""
    opened = database.open_database(f"sqlite:///{tmp_path / 'tuner.db'}")
    with opened.begin() as connection:
        connection.execute(text("CREATE TABLE note (word TEXT UNIQUE)"))
    yield opened
    opened.dispose()


def insert(word: str) -> Callable[[Session], None]:
    """Return a change that stores a note."""

    def change(session: Session) -> None:
        session.execute(text("INSERT INTO note VALUES (:word)"), {"word": word})

    return change


def insert_joined(session: Session, words: Sequence[str]) -> None:
    """Store a group of words as one note."""
    insert("+".join(words))(session)


def notes(engine: Engine) -> list[str]:
    """Return the committed notes in the order of their insertion."""
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT word FROM note ORDER BY rowid")))


def run(engine: Engine, main: Main, policy: WritePolicy = WritePolicy.BATCHED) -> None:
    """Run a coroutine with a writer under a policy."""

    async def with_writer() -> None:
        writer = RecordWriter(database.sessions(engine))
        writer.policy = policy
        await main(writer)

    asyncio.run(with_writer())


def test_several_devices_share_transactions() -> None:
    """One device commits at once, several commit in batches."""
    policies = [WritePolicy.for_devices(n) for n in (0, 1, 2, 1000)]

    assert policies == [WritePolicy.IMMEDIATE] * 2 + [WritePolicy.BATCHED] * 2


@pytest.mark.parametrize(
    ("policy", "committed"), [(WritePolicy.IMMEDIATE, ["a"]), (WritePolicy.BATCHED, [])]
)
def test_the_policy_decides_whether_a_step_is_committed(
    engine: Engine, policy: WritePolicy, committed: list[str]
) -> None:
    """A batch is committed with the next turn of the loop, or when a round waits for it."""

    async def main(writer: RecordWriter) -> None:
        writer.write(insert("a"))
        writer.flush_if_immediate()
        assert notes(engine) == committed
        await writer.wait_flushed()
        assert notes(engine) == ["a"]

    run(engine, main, policy)


@pytest.mark.parametrize(("n_waiting", "n_committed"), [(2, 1), (3, 4)])
def test_a_full_batch_is_not_held_back(
    engine: Engine, n_waiting: int, n_committed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause after a slow commit ends as soon as the batch has its largest size."""
    monkeypatch.setattr(record_writer, "_MAX_BATCH", 3)
    monkeypatch.setattr(record_writer, "_PAUSE_PER_COMMIT", 1e6)

    async def main(writer: RecordWriter) -> None:
        writer.write(insert("slow"))
        writer.flush()
        for n in range(n_waiting):
            writer.write(insert(str(n)))
        for _ in range(2):
            await asyncio.sleep(0)
        assert len(notes(engine)) == n_committed

    run(engine, main)


def test_groups_are_written_before_changes_and_changes_in_order(engine: Engine) -> None:
    """One call writes all items of a group; changes keep the order of submission."""

    async def main(writer: RecordWriter) -> None:
        writer.write(insert("first"))
        writer.write_grouped(insert_joined, "x")
        writer.write(insert("second"))
        writer.write_grouped(insert_joined, "y")
        writer.flush()

    run(engine, main)

    assert notes(engine) == ["x+y", "first", "second"]


def test_a_refused_write_is_raised_to_its_owner_alone(engine: Engine) -> None:
    """The other writes of its batch are committed."""

    async def main(writer: RecordWriter) -> None:
        writer.write(insert("a"), owner=1)
        writer.write(insert("a"), owner=2)
        writer.write(insert("b"), owner=3)
        writer.flush(owner=3)
        with pytest.raises(Exception, match="UNIQUE"):
            writer.write(insert("c"), owner=2)
        writer.write(insert("d"), owner=2)
        writer.flush(owner=2)

    run(engine, main)

    assert notes(engine) == ["a", "b", "d"]


def test_errors_of_a_job_that_ended_are_dropped(engine: Engine) -> None:
    """An error that a job did not collect is not raised after it ended."""

    async def main(writer: RecordWriter) -> None:
        for _ in range(2):
            writer.write(insert("a"), owner=1)
        writer.flush()
        writer.drop_errors(1)
        writer.flush(owner=1)

    run(engine, main)


def test_trials_alone_do_not_wait_for_the_disk(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change that ends a round does, and makes the trials before it durable as well."""
    monkeypatch.setattr(connections, "SYNCHRONOUS", DURABLE)
    with database.sessions(engine).begin() as session:
        task_id = make.task(session)
    modes: list[int] = []

    @event.listens_for(engine, "commit")
    def note_mode(connection: Connection) -> None:
        modes.append(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())

    async def main(writer: RecordWriter) -> None:
        for n in range(2):
            writer.record(make.timed(task_id, str(n), 1.0), lambda _: None)
            writer.flush()
        writer.record(make.timed(task_id, "last", 1.0), lambda _: None)
        writer.write(insert("done"))
        writer.flush()

    run(engine, main, WritePolicy.IMMEDIATE)

    normal, full = 1, 2
    assert modes == [normal, normal, full]
