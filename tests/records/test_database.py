"""Databases open safely when new, busy, foreign, damaged, unreachable, or left by a crash."""

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.exc import OperationalError

from records import database, measure_records
from records.errors import DatabaseUnusable, SchemaTooNew
from records.models import MeasureRecord
from records.storage import connections
from tests.durability import DURABLE
from tests.records import make

pytestmark = pytest.mark.usefixtures("migrating")

ROOT = Path(__file__).parents[2]

OPEN = """
import sys
from records import database
print("ready", flush=True)
sys.stdin.readline()
database.open_database(sys.argv[1]).dispose()
"""

RECORD_FOREVER = """
import sys
from records import database, measure_records
from records.storage import connections
from tests.records import make
factory = database.sessions(database.open_database(sys.argv[1]))
with factory.begin() as session:
    task_id = make.task(session)
for n in range(1_000_000):
    with factory.begin() as session:
        measure_records.add_record(session, make.timed(task_id, str(n), 1.0))
    print(n, flush=True)
"""


def start(script: str, url: str) -> subprocess.Popen[str]:
    """Start Python with a script, in the root of the repository."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-W", "error", "-c", script, url]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def test_processes_that_open_a_new_database_at_once_all_succeed(url: str) -> None:
    """Three processes migrate one empty database at the same moment."""
    processes = [start(OPEN, url) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outcomes = [(process.communicate()[1], process.returncode) for process in processes]

    assert outcomes == [("", 0)] * 3


def test_a_killed_process_loses_nothing_committed(url: str) -> None:
    """After kill -9, every record that was reported as committed is stored, once."""
    process = start(RECORD_FOREVER, url)
    assert process.stdout is not None
    n_printed = 0
    while n_printed < 50:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        n_printed = int(line) + 1
    process.send_signal(signal.SIGKILL)
    n_printed += len(process.stdout.read().split())  # what is buffered already, and the rest
    process.communicate()

    engine = database.open_database(url)
    with database.sessions(engine).begin() as session:
        hashes = set(session.scalars(select(MeasureRecord.trace_hash)))
        again = measure_records.add_record(session, make.timed(1, "0", 1.0))
    engine.dispose()

    assert {str(n) for n in range(n_printed)} <= hashes
    assert len(hashes) <= n_printed + 1  # the last commit may not have been n_printed
    assert again is None


def test_a_thread_does_not_wait_for_itself(sqlite_url: str) -> None:
    """A second transaction that writes is an error of the program; one after the first is none."""
    factory = database.sessions(database.open_database(sqlite_url))

    with factory.begin() as outer:
        make.task(outer)
        with factory() as inner, pytest.raises(RuntimeError, match="already has a transaction"):
            make.task(inner)

    with factory.begin() as later:
        make.task(later)


def test_a_reader_does_not_wait_for_a_writer(engine: Engine) -> None:
    """A read-only session sees the last commit while another transaction writes."""
    with database.sessions(engine).begin() as session:
        make.task(session)
    with database.sessions(engine)() as writer:
        make.task(writer, "other")
        with database.sessions(engine, read_only=True)() as reader:
            seen = reader.scalar(select(func.count()).select_from(text("task")))
        writer.rollback()

    assert seen == 1


def test_sqlite_waits_for_the_disk_at_each_commit(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without synchronous=FULL, a power failure would take back the last commits of a WAL."""
    monkeypatch.setattr(connections, "SYNCHRONOUS", DURABLE)
    engine = database.open_database(sqlite_url)
    full = 2
    for opened in (engine, database.with_limits(engine, connections.Limits(pool_size=1))):
        with opened.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == full
        opened.dispose()


def test_sqlite_checks_foreign_keys_and_waits_for_locks(sqlite_url: str) -> None:
    """Foreign keys are enforced, and a locked file is waited for, in every connection."""
    engine = database.open_database(sqlite_url)
    with engine.connect() as connection:
        pragmas = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("foreign_keys", "busy_timeout")
        ]
    engine.dispose()

    assert pragmas == [1, 30_000]


@pytest.mark.parametrize("revision", ["9999", "0001"])
def test_an_unknown_schema_is_left_alone(url: str, revision: str) -> None:
    """The error names the revision, whether later or from before the first release, and advises."""
    engine = database.open_database(url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    engine.dispose()

    with pytest.raises(SchemaTooNew, match=f"{revision}.*upgrade subgraph-tuner, or use a new"):
        database.open_database(url)


@pytest.mark.parametrize("path", ["file/records.db", "file/deeper/records.db", "."])
def test_an_unwritable_path_is_one_line(tmp_path: Path, path: str) -> None:
    """The error names a path below a regular file, or a path that is a folder, on one line."""
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(DatabaseUnusable) as raised:
        database.open_database(f"sqlite:///{tmp_path / path}")

    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_a_database_is_left_alone(tmp_path: Path) -> None:
    """Opening it is an error and changes no byte."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all, but longer than a header " * 9)
    before = path.read_bytes()

    with pytest.raises(DatabaseUnusable, match=r"notes\.txt.*not a database"):
        database.open_database(f"sqlite:///{path}")

    assert path.read_bytes() == before


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """Opening a browser's bookmarks is an error and changes no byte."""
    path = tmp_path / "places.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmark (id INTEGER)")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(DatabaseUnusable, match="another program"):
        database.open_database(f"sqlite:///{path}")

    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@127.0.0.1:1/tuner",  # no server listens
        "postgresql://me@127.0.0.1:1/tuner?password=secret",
        "mysql://me:secret@localhost/tuner",
        "nonsense",
    ],
)
def test_an_unusable_url_is_one_line_without_its_password(url: str) -> None:
    """The error for an unreachable or malformed URL hides the password."""
    with pytest.raises(DatabaseUnusable) as raised:
        database.open_database(url)

    message = str(raised.value)
    assert "\n" not in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////data/records.db", "sqlite:////data/records.db"),
        ("postgresql://me:p@host/db", "postgresql://me:***@host/db"),
        ("postgresql://host/db?password=p", "postgresql://host/db?password=***"),
        ("odd thing://me:p@host", "odd thing://***@host"),
    ],
)
def test_redact_hides_passwords(url: str, shown: str) -> None:
    """Everything but the password stays readable."""
    assert database.redact(url).replace("%2A", "*") == shown


def test_a_database_can_be_in_memory() -> None:
    """A URL without a file opens a database within the process."""
    engine = database.open_database("sqlite://")
    with database.sessions(engine).begin() as session:
        assert make.task(session) == 1
    engine.dispose()


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_measuring_session_waits_for_a_locked_file(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, gives_up: bool
) -> None:
    """The session retries until the lock is free or the callback refuses to wait on."""
    monkeypatch.setattr(connections, "BUSY_SECS", 0.05)
    engine = database.open_database(sqlite_url)
    waits = []
    holder = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    def on_locked(waited_secs: float) -> bool:
        waits.append(waited_secs)
        if len(waits) == 2 and not gives_up:
            holder.execute("COMMIT")
        return len(waits) < 2 or not gives_up

    factory = database.sessions(engine, on_locked=on_locked)
    if gives_up:
        with pytest.raises(OperationalError, match="locked"), factory.begin() as session:
            make.task(session)
        holder.execute("COMMIT")
    with factory.begin() as session:
        task_id = make.task(session)
        measure_records.add_record(session, make.timed(task_id, "t", 1.0))

    assert len(waits) == 2
    assert waits == sorted(waits)
    with database.sessions(engine)() as session:
        assert session.scalar(select(func.count()).select_from(MeasureRecord)) == 1
    holder.close()
    engine.dispose()


def test_idle_transactions_of_every_connection_end(postgres_url: str) -> None:
    """The limit also applies to the connection that opened the database."""
    engine = database.open_database(postgres_url)
    database.end_idle_transactions(engine, 5.0)
    with engine.connect() as connection:
        limit = connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
    engine.dispose()

    assert limit == "5s"
