"""The command line: ``tuner``.

Commands live in :mod:`tuner.cli.commands`; this module names them and turns errors
into one line and an exit status: 0 done, 1 the work failed, 2 the request was wrong.
"""

import os
import sys
from typing import Annotated

import typer

from tuner.cli import connection
from tuner.cli.commands import (
    bench,
    build,
    cache,
    devices,
    doctor,
    engine,
    jobs,
    records,
    replay,
    serve,
    table,
    tasks,
    token,
    tune,
    worker,
)

# Commands that are about this machine alone, whatever TUNER_SERVER names.
_HERE = ("serve", "worker", "token", "cache", "devices", "engine")

app = typer.Typer(
    name="tuner",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command("tune")(tune.tune)
app.command("tasks")(tasks.tasks)
app.command("build")(build.build)
app.command("bench")(bench.bench)
app.command("table")(table.table)
app.command("doctor")(doctor.doctor)
app.command("devices")(devices.devices)
app.command("replay")(replay.replay)
app.command("serve")(serve.serve)
app.command("worker")(worker.worker)
app.add_typer(token.app, name="token")
app.add_typer(jobs.app, name="jobs")
app.add_typer(records.app, name="records")
app.add_typer(cache.app, name="cache")
app.add_typer(engine.app, name="engine")


@app.callback()
def root(
    ctx: typer.Context,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Have a service do it, and use its records. Also TUNER_SERVER.",
            show_default=False,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="What opens the service, where it asks for one. Also TUNER_TOKEN, which other "
            "users of this machine do not see.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Tune the subgraph kernels of a network, keep every measurement, build the fastest."""
    url = server or os.environ.get("TUNER_SERVER") or None
    connection.choose(
        None
        if url is None
        else connection.Connection(url, token or os.environ.get("TUNER_TOKEN") or None)
    )
    command = ctx.invoked_subcommand or ""
    if command in _HERE:
        if server is not None:
            connection.refuse(command)
        connection.choose(None)


def main() -> None:
    """Run the command line and exit."""
    run_app(app)


def run_app(commands: typer.Typer) -> None:
    """Run a command-line application; report errors in one line and as an exit status."""
    from sqlalchemy.exc import DBAPIError

    from records.errors import RecordsError
    from tuner.cli.console import print_error
    from tuner.cli.options import message_of
    from tuner.errors import TunerError, summary
    from tuner.interrupts import Interrupted

    try:
        sys.exit(commands(standalone_mode=False))
    except typer.Abort:
        sys.exit(130)
    except Interrupted as stop:
        print(f"tuner: {stop}", file=sys.stderr)
        sys.exit(stop.exit_code)
    except TunerError as error:
        print_error(message_of(error))
        sys.exit(error.exit_code)
    except RecordsError as error:
        print(f"tuner: {error}", file=sys.stderr)
        sys.exit(2)
    except DBAPIError as error:
        print(f"tuner: the database failed: {summary(error)}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(f"tuner: {error.strerror or error}{where}", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        _usage_or_raise(error)


def _usage_or_raise(error: Exception) -> None:
    """Show what was wrong with the command line; anything else is a defect of ours."""
    if not hasattr(error, "exit_code") or not hasattr(error, "format_message"):
        raise error
    message = error.format_message()
    if message:
        print(f"tuner: {message}", file=sys.stderr)
    sys.exit(2)
