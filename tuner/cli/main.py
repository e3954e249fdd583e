"""The program ``tuner``: its commands, and its errors as one line and an exit status.

The exit status is 0 if the command is done, 1 if the work failed, 2 if the request was wrong.
"""

import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

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

# The commands in the order of the help page, each with its panel.
_COMMANDS: dict[str, tuple[str, Callable[..., None] | typer.Typer]] = {
    "tasks": (_BUILD, tasks.tasks),
    "tune": (_BUILD, tune.tune),
    "build": (_BUILD, build.build),
    "bench": (_BUILD, bench.bench),
    "check": (_BUILD, check.check),
    "profile": (_BUILD, profile.profile),
    "bisect": (_BUILD, bisect.bisect),
    "pack": (_BUILD, pack.app),
    "inspect": (_LOOK, libraries.inspect),
    "libraries": (_LOOK, libraries.app),
    "table": (_LOOK, table.table),
    "jobs": (_LOOK, jobs.app),
    "records": (_LOOK, records.app),
    "report": (_LOOK, report.report),
    "replay": (_LOOK, replay.replay),
    "serve": (_SERVICE, serve.serve),
    "worker": (_SERVICE, worker.worker),
    "token": (_SERVICE, token.app),
    "db": (_SERVICE, db.app),
    "doctor": (_MACHINE, doctor.doctor),
    "settings": (_MACHINE, settings.settings),
    "devices": (_MACHINE, devices.devices),
    "cache": (_MACHINE, cache.app),
    "engine": (_MACHINE, engine.app),
}

app = typer.Typer(
    name="tuner",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib import metadata

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
    return _program(_make_command)


def main() -> None:
    """Run the command line and exit."""
    run_program(_program(_Summary))


class _Summary(TyperCommand):
    """A command on the help page of the program, which is built when it is called."""

    def __init__(self, name: str) -> None:
        panel, entry = _COMMANDS[name]
        text = entry.info.help if isinstance(entry, typer.Typer) else inspect.getdoc(entry)
        super().__init__(name, help=text, rich_help_panel=panel, rich_markup_mode="markdown")

    def make_context(self, *args: Any, **extra: Any) -> Any:
        return _make_command(str(self.name)).make_context(*args, **extra)


def _program(make: Callable[[str], Any]) -> Any:
    program: Any = typer.main.get_command(app)
    help_pages.arrange(program)
    program.commands = {name: make(name) for name in _COMMANDS}
    return program


def _make_command(name: str) -> Any:
    panel, entry = _COMMANDS[name]
    group = typer.Typer(rich_markup_mode=app.rich_markup_mode)
    if isinstance(entry, typer.Typer):
        group.add_typer(entry, name=name, rich_help_panel=panel)
    else:
        if entry is tune.tune:
            # The fields of a job take as long to import as the rest of the program.
            from tuner.cli.spec_options import with_spec_options

            entry = with_spec_options(entry)
        group.command(name, rich_help_panel=panel)(entry)
    command = typer.main.get_group(group).commands[name]
    help_pages.arrange(command)
    return command


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
            # Phrases of pydantic, which typer passes on.
            message = message.replace(": Value error, ", ": ")
            print_error(message.replace(": Input should be ", ": must be "))
        sys.exit(2)
    # Imported last: help pages need no database.
    from sqlalchemy.exc import DBAPIError

    from tuner.errors import summary

    if not isinstance(error, DBAPIError):
        raise error
    print_error(f"the database failed: {summary(error)}")
    sys.exit(1)
