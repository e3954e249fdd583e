"""``tuner db``: upgrade, check and backup."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from records import database, migrations
from tests.records.later_version import REVISION, later_version
from tests.tuner.cli.commands.conftest import Shell

OLD = migrations.newest()


def create(url: str) -> None:
    """Create a database of this version, with its folder."""
    Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    database.open_database(url).dispose()


@pytest.fixture
def old_url(tmp_path: Path) -> Iterator[str]:
    """URL of an SQLite database older than the program, outside of the data directory."""
    url = f"sqlite:///{tmp_path}/old/records.db"
    create(url)
    with later_version(tmp_path / "later"):
        yield url


def test_only_db_upgrade_upgrades_a_named_database(shell: Shell, old_url: str) -> None:
    """Every other command names the command; afterwards all of them work."""
    refused = shell("records", "list", "--database", old_url)
    checked = shell("db", "check", "--database", old_url, "--json")
    upgraded = shell("db", "upgrade", "--database", old_url, "--json")
    again = shell("db", "upgrade", "--database", old_url)

    assert refused.status == 2
    assert f"has schema revision {OLD}, and this version needs {REVISION}" in refused.err
    assert "run `tuner db upgrade`" in refused.err
    assert (checked.status, checked.json["state"], checked.json["revision"]) == (1, "older", OLD)
    assert (upgraded.json["before"], upgraded.json["revision"]) == (OLD, REVISION)
    assert "is up to date" in again.out
    assert shell("records", "list", "--database", old_url).status == 0


def test_the_default_database_is_upgraded_by_its_only_user(shell: Shell, tmp_path: Path) -> None:
    """A command upgrades the file in the data directory, unless another process has it open."""
    create(shell.url)
    service = sqlite3.connect(shell.url.removeprefix("sqlite:///"))
    service.execute("PRAGMA journal_mode=WAL").fetchall()
    service.execute("SELECT count(*) FROM job").fetchall()
    with later_version(tmp_path / "later"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_ALONE_TIMEOUT_SECS", 0.3)
        refused = shell("records", "list")
        service.close()
        listed = shell("records", "list")
        checked = shell("db", "check", "--json")

    assert (refused.status, "run `tuner db upgrade`" in refused.err) == (2, True)
    assert (listed.status, checked.json["revision"]) == (0, REVISION)


def test_a_new_database_needs_no_upgrade(shell: Shell) -> None:
    """``upgrade`` creates it; ``check`` and ``backup`` of a missing one create nothing."""
    missing = shell("db", "check")
    created = shell("db", "upgrade")

    assert missing.status == 1
    assert "the database does not exist" in missing.err
    assert f"schema {migrations.newest()}, new." in created.out
    assert shell("db", "check", "--integrity").out.endswith(", usable.\n")


def test_a_newer_database_is_reported(shell: Shell) -> None:
    """The check says so, and an upgrade refuses it."""
    shell("db", "upgrade")
    with sqlite3.connect(shell.url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    checked = shell("db", "check", "--json")

    assert (checked.status, checked.json["state"]) == (1, "newer")
    assert "upgrade subgraph-tuner" in checked.err
    assert shell("db", "upgrade").status == 2


def test_a_backup_of_any_schema_is_written(shell: Shell, old_url: str) -> None:
    """The copy of an old database is old too, and upgraded like the original."""
    copy = shell.folder / "copy.db"
    answer = shell("db", "backup", str(copy), "--database", old_url, "--json")

    assert answer.json["n_bytes"] == copy.stat().st_size
    url = f"sqlite:///{copy}"
    assert shell("db", "check", "--database", url, "--json").json["revision"] == OLD
    assert shell("db", "upgrade", "--database", url).status == 0
    assert shell("db", "backup", str(copy), "--database", old_url).status == 1
