"""``tuner db``: upgrade, check and backup."""

import sqlite3
from pathlib import Path

import pytest

from records import database, migrations
from tests.records.test_migrations import load_dump
from tests.tuner.cli.commands.conftest import Shell


@pytest.fixture
def old_url(tmp_path: Path) -> str:
    """URL of an SQLite database of revision 0003, outside of the data directory."""
    url = f"sqlite:///{tmp_path}/old/records.db"
    load_dump(url, "0003")
    return url


def test_only_db_upgrade_upgrades_a_named_database(shell: Shell, old_url: str) -> None:
    """Every other command names the command; afterwards all of them work."""
    refused = shell("records", "list", "--database", old_url)
    checked = shell("db", "check", "--database", old_url, "--json")
    upgraded = shell("db", "upgrade", "--database", old_url, "--json")
    again = shell("db", "upgrade", "--database", old_url)

    newest = migrations.newest()
    assert refused.status == 2
    assert f"has schema revision 0003, and this version needs {newest}" in refused.err
    assert "run `tuner db upgrade`" in refused.err
    assert (checked.status, checked.json["state"], checked.json["revision"]) == (1, "older", "0003")
    assert (upgraded.json["before"], upgraded.json["revision"]) == ("0003", newest)
    assert "is up to date" in again.out
    assert shell("records", "list", "--database", old_url).status == 0


def test_the_default_database_is_upgraded_by_its_only_user(shell: Shell) -> None:
    """A command upgrades the file in the data directory, unless another process has it open."""
    load_dump(shell.url, "0003")
    path = shell.url.removeprefix("sqlite:///")
    service = sqlite3.connect(path)
    service.execute("PRAGMA journal_mode=WAL").fetchall()
    service.execute("SELECT count(*) FROM job").fetchall()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_ALONE_TIMEOUT_SECS", 0.3)
        refused = shell("records", "list")
    service.close()

    assert (refused.status, "run `tuner db upgrade`" in refused.err) == (2, True)
    assert shell("records", "list").status == 0
    assert shell("db", "check", "--json").json["revision"] == migrations.newest()


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
    assert shell("db", "check", "--database", url, "--json").json["revision"] == "0003"
    assert shell("db", "upgrade", "--database", url).status == 0
    assert shell("db", "backup", str(copy), "--database", old_url).status == 1
