"""The program ``tuner``: its commands, and its errors as one line and an exit status.

The exit status is 0 if the command is done, 1 if the work failed, 2 if the request was wrong.
"""

import os
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Any

import typer

from tuner.cli import connection, help_pages
from tuner.cli.commands import (
    bench,
    bisect,
    build,
    check,
    jobs,
    pack,
    profile,
    replay,
    report,
    table,
    tasks,
    tune,
)
from tuner.cli.commands.cache import group as cache
from tuner.cli.commands.libraries import group as libraries
from tuner.cli.commands.machine import devices, doctor, engine, settings
from tuner.cli.commands.records import group as records
from tuner.cli.commands.service import db, serve, token, worker
from tuner.cli.console import choose_detail, detail, print_error
from tuner.cli.options import option

# Commands that work on this machine alone, whatever TUNER_SERVER names.
_LOCAL = (
    "serve",
    "worker",
    "token",
    "db",
    "cache",
    "engine",
    "pack",
    "inspect",
    "libraries",
    "bisect",
    "settings",
)
_BUILD, _LOOK, _SERVICE, _MACHINE = "Tune and build", "Look", "Service", "Machine"

app = typer.Typer(
    name="tuner",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command("tasks", rich_help_panel=_BUILD)(tasks.tasks)
app.command("tune", rich_help_panel=_BUILD)(tune.tune)
app.command("build", rich_help_panel=_BUILD)(build.build)
app.command("bench", rich_help_panel=_BUILD)(bench.bench)
app.command("check", rich_help_panel=_BUILD)(check.check)
app.command("bisect", rich_help_panel=_BUILD)(bisect.bisect)
app.command("profile", rich_help_panel=_BUILD)(profile.profile)
app.add_typer(pack.app, name="pack", rich_help_panel=_BUILD)
app.command("table", rich_help_panel=_LOOK)(table.table)
app.command("inspect", rich_help_panel=_LOOK)(libraries.inspect)
app.add_typer(libraries.app, name="libraries", rich_help_panel=_LOOK)
app.add_typer(jobs.app, name="jobs", rich_help_panel=_LOOK)
app.add_typer(records.app, name="records", rich_help_panel=_LOOK)
app.command("report", rich_help_panel=_LOOK)(report.report)
app.command("replay", rich_help_panel=_LOOK)(replay.replay)
app.command("serve", rich_help_panel=_SERVICE)(serve.serve)
app.command("worker", rich_help_panel=_SERVICE)(worker.worker)
app.add_typer(token.app, name="token", rich_help_panel=_SERVICE)
app.add_typer(db.app, name="db", rich_help_panel=_SERVICE)
app.command("doctor", rich_help_panel=_MACHINE)(doctor.doctor)
app.command("settings", rich_help_panel=_MACHINE)(settings.settings)
app.command("devices", rich_help_panel=_MACHINE)(devices.devices)
app.add_typer(cache.app, name="cache", rich_help_panel=_MACHINE)
app.add_typer(engine.app, name="engine", rich_help_panel=_MACHINE)
# Typer lists groups after all commands.
_ORDER = (
    *("tasks", "tune", "build", "bench", "check", "profile", "bisect", "pack"),
    *("inspect", "libraries", "table", "jobs", "records", "report", "replay"),
    *("serve", "worker", "token", "db"),
    *("doctor", "settings", "devices", "cache", "engine"),
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"tuner {metadata.version('subgraph-tuner')}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    server: Annotated[
        str | None,
        option(
            "URL", "Run the command on this tuner server instead of locally. Also TUNER_SERVER."
        ),
    ] = None,
    token: Annotated[
        str | None,
        option(
            "TOKEN",
            "API token of the server. Prefer the variable TUNER_TOKEN: other users of this "
            "machine can see command lines.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Tune the kernels of neural networks, store every measurement, build the best library."""
    from tuner.settings import check_variables

    choose_detail("normal")
    del version  # handled by its callback
    check_variables(os.environ)
    url = server or os.environ.get("TUNER_SERVER") or None
    connection.choose(
        None
        if url is None
        else connection.Connection(url, token or os.environ.get("TUNER_TOKEN") or None)
    )
    command = ctx.invoked_subcommand or ""
    if command in _LOCAL:
        if server is not None:
            connection.refuse(command)
        connection.choose(None)


def make_program() -> Any:
    """Build the click group of all commands, with their help pages arranged."""
    program = typer.main.get_command(app)
    help_pages.arrange(program, _ORDER)
    return program


def main() -> None:
    """Run the command line and exit."""
    run_program(make_program())


def run_program(program: Callable[..., Any]) -> None:
    """Run a click command; report errors in one line and as an exit status."""
    from records.errors import DatabaseFull, RecordsError
    from tuner.cli.options import message_of
    from tuner.errors import TunerError
    from tuner.interrupts import Interrupted

    try:
        sys.exit(program(standalone_mode=False))
    except typer.Abort:
        sys.exit(130)
    except Interrupted as interrupt:
        if detail() != "quiet":
            print_error(str(interrupt))
        sys.exit(interrupt.exit_code)
    except TunerError as error:
        print_error(message_of(error))
        sys.exit(error.exit_code)
    except RecordsError as error:
        print_error(str(error))
        sys.exit(1 if isinstance(error, DatabaseFull) else 2)
    except OSError as error:
        path = f": {error.filename}" if error.filename else ""
        print_error(f"{error.strerror or error}{path}")
        sys.exit(1)
    except Exception as error:
        _report(error)


def _report(error: Exception) -> None:
    """Report a mistake in the command line or of the database; raise any other, which is a bug."""
    if hasattr(error, "exit_code") and hasattr(error, "format_message"):
        if message := error.format_message():
            print_error(message)
        sys.exit(2)
    # Imported last: help pages need no database.
    from sqlalchemy.exc import DBAPIError

    from tuner.errors import summary

    if not isinstance(error, DBAPIError):
        raise error
    print_error(f"the database failed: {summary(error)}")
    sys.exit(1)
