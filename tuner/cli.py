"""The command line: ``tuner``.

Commands live in :mod:`tuner.commands`; this module names them and turns errors
into one line and an exit status: 0 done, 1 the work failed, 2 the request was wrong.
"""

import sys

import typer

from tuner.commands import bench, build, doctor, jobs, records, replay, table, tasks, tune

app = typer.Typer(
    name="tuner",
    help="Tune the subgraph kernels of a network, keep every measurement, build the fastest.",
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
app.command("replay")(replay.replay)
app.add_typer(jobs.app, name="jobs")
app.add_typer(records.app, name="records")


def main() -> None:
    """Run the command line and exit."""
    from sqlalchemy.exc import DBAPIError

    from records.errors import RecordsError
    from tuner.errors import TunerError
    from tuner.interrupts import Interrupted

    try:
        sys.exit(app(standalone_mode=False))
    except typer.Abort:
        sys.exit(130)
    except Interrupted as stop:
        print(f"tuner: {stop}", file=sys.stderr)
        sys.exit(stop.exit_code)
    except TunerError as error:
        print(f"tuner: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except RecordsError as error:
        print(f"tuner: {error}", file=sys.stderr)
        sys.exit(2)
    except DBAPIError as error:
        reason = str(error.orig).strip().splitlines()[0]
        print(f"tuner: the database failed: {reason}", file=sys.stderr)
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
