"""``tuner db``: upgrade, check and back up the database of the records."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import options
from tuner.cli.console import print_json, print_line
from tuner.cli.options import argument, flag

if TYPE_CHECKING:
    from sqlalchemy import Engine

app = typer.Typer(help="Upgrade, check and back up the database.", no_args_is_help=True)


@app.command("upgrade")
def upgrade(
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Upgrade the schema of the database to that of this version.

    No other command upgrades the database of a service. Back up first, and stop the service:
    its older processes stop working once the schema is newer than they are. Nothing happens if
    the schema is up to date.

    Examples:
        tuner db upgrade
        tuner db upgrade --database postgresql://db/tuner
    """
    from records import database as databases
    from records import migrations

    url = _url(database, data_dir)
    before = _revision(url)
    databases.open_database(url, upgrade="always").dispose()
    after, shown = migrations.newest(), databases.redact(url)
    if json_output:
        print_json({"database": shown, "before": before, "revision": after})
    elif before == after:
        print_line(f"{shown}: schema {after} is up to date.")
    else:
        print_line(f"{shown}: schema {after}, {f'upgraded from {before}' if before else 'new'}.")


@app.command("check")
def check(
    integrity: Annotated[
        bool,
        flag("--integrity", "Read the whole SQLite file and report damage, such as bad disks."),
    ] = False,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Check that the database can be used, and change nothing.

    The exit status is 1 if its schema is older or newer than this version, or if it is damaged.

    Examples:
        tuner db check
        tuner db check --integrity
    """
    from records import database as databases
    from records import migrations
    from records.errors import SchemaTooNew
    from records.storage.backup import find_damage
    from tuner.errors import WorkError

    url = _url(database, data_dir)
    shown, engine = databases.redact(url), _connect(url)
    try:
        revision = migrations.revision_of(engine)
        try:
            state: str = migrations.state_of(engine, shown)
            problem = str(migrations.too_old(revision, shown)) if state == "older" else ""
        except SchemaTooNew as error:
            state, problem = "newer", str(error)
        damage = find_damage(engine) if integrity else ""
    finally:
        engine.dispose()
    if damage:
        state, problem = "damaged", f"{shown} is damaged: {damage}; restore a backup"
    if json_output:
        print_json({"database": shown, "revision": revision, "state": state})
    elif not problem:
        print_line(f"{shown}: schema {revision or 'none yet'}, usable.")
    if problem:
        raise WorkError(problem)


@app.command("backup")
def backup(
    file: Annotated[Path, argument("FILE", "New file to write.")],
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Write a consistent copy of the database to a file, also while the service runs.

    The copy of an SQLite database is an SQLite file. A PostgreSQL database is dumped by pg_dump,
    which must be installed, in its custom format. Uploaded models are files of the data
    directory: copy its folder uploads as well.

    Example:
        tuner db backup tuner-backup.db
    """
    from records import database as databases
    from records.storage.backup import write_backup

    url = _url(database, data_dir)
    engine = _connect(url)
    try:
        write_backup(engine, file)
    finally:
        engine.dispose()
    if json_output:
        shown = databases.redact(url)
        print_json({"database": shown, "file": str(file), "n_bytes": file.stat().st_size})
    else:
        print_line(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")


def _url(database: str | None, data_dir: Path | None) -> str:
    from tuner.settings import read_settings

    return read_settings({"database": database, "data_dir": data_dir}).database


def _revision(url: str) -> str | None:
    """Return the schema revision of a database; None for a missing or empty one."""
    from records import migrations

    try:
        engine = _connect(url)
    except FileNotFoundError:
        return None
    try:
        return migrations.revision_of(engine)
    finally:
        engine.dispose()


def _connect(url: str) -> "Engine":
    """Connect to an existing database, whatever its schema is.

    Raises:
        FileNotFoundError: If it is an SQLite file that does not exist.
        DatabaseUnusable: If it cannot be used.
    """
    from records import database as databases

    return databases.connect_existing(url)
