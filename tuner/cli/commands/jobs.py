"""``tuner jobs``: list jobs, and tell one that runs to stop or to go on for longer."""

from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import options
from tuner.cli.backends import open_backend
from tuner.cli.console import print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.schemas import JobSummary

app = typer.Typer(help="List jobs; pause, resume, cancel or extend one.", no_args_is_help=True)

JobArgument = Annotated[
    int, typer.Argument(metavar="JOB", help="Its number.", min=1, max=2**31 - 1)
]


@app.command("ls")
def ls(
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List all jobs, the newest first.

    Example:
        tuner jobs ls
    """
    from tuner.cli.rendering.json_output import job_as_json

    with open_backend(database, data_dir) as source:
        found = source.jobs()
    if json_output:
        print_json({"jobs": [job_as_json(job) for job in found]})
        return
    _show(found)


@app.command("pause")
def pause(
    job: JobArgument,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Stop a job after the round that runs; tuner tune with the same network goes on with it.

    Example:
        tuner jobs pause 3
    """
    with open_backend(database, data_dir) as source:
        _report(source.pause(job), json_output=json_output)


@app.command("cancel")
def cancel(
    job: JobArgument,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Stop a job after the round that runs, and mark it as cancelled; what it measured stays.

    Example:
        tuner jobs cancel 3
    """
    with open_backend(database, data_dir) as source:
        _report(source.cancel(job), json_output=json_output)


@app.command("resume")
def resume(
    job: JobArgument,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Let a job of the service go on that was paused or cancelled, or that failed.

    A job of the command line goes on with tuner tune and the same network.

    Example:
        tuner jobs resume 3
    """
    with open_backend(database, data_dir) as source:
        _report(source.resume(job), json_output=json_output)


@app.command("rm")
def rm(
    job: JobArgument,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Take a job that does not run off the list; what it measured stays, and is used.

    Example:
        tuner jobs rm 3
    """
    with open_backend(database, data_dir) as source:
        source.delete(job)
    if json_output:
        print_json({"job": job, "deleted": True})
        return
    print_line(f"job {job} is off the list; its records stay")


@app.command("budget")
def budget(
    job: JobArgument,
    trials: Annotated[
        int | None,
        typer.Option(help="Trials in all, from now on.", min=1, max=10**9, show_default=False),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Seconds in all, from now on.", show_default=False)
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Raise a limit of a job; one that runs goes on until it is reached.

    A limit that the job does not have, or a smaller one, changes nothing.

    Example:
        tuner jobs budget 3 --trials 2000
    """
    from tuner.errors import RequestError

    if trials is None and seconds is None:
        raise RequestError("give --trials, --seconds, or both")
    if seconds is not None and not 0.0 < seconds < float("inf"):
        raise RequestError(f"--seconds must be above 0, got {seconds}")
    with open_backend(database, data_dir) as source:
        _report(source.raise_budget(job, trials, seconds), json_output=json_output)


@app.command("priority")
def priority(
    job: JobArgument,
    value: Annotated[
        int,
        typer.Argument(metavar="PRIORITY", help="Each step doubles the share.", min=-30, max=30),
    ],
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Change how much of the device time a job gets while others run beside it.

    Example:
        tuner jobs priority 3 2
    """
    with open_backend(database, data_dir) as source:
        _report(source.set_priority(job, value), json_output=json_output)


def _report(job: "JobSummary", *, json_output: bool) -> None:
    """Say what a job is after a change."""
    from tuner.cli.rendering.json_output import job_as_json

    if json_output:
        print_json(job_as_json(job))
        return
    _show([job])


def _show(found: "Sequence[JobSummary]") -> None:
    from tuner.cli.console import stdout_console
    from tuner.cli.rendering.tables import job_table

    console = stdout_console()
    console.print(job_table(found))
    for job in found:
        if job.message:
            console.print(f"job {job.id}: {job.message}", highlight=False, markup=False)
