"""``tuner jobs``: list jobs, and tell one that runs to stop or to go on for longer."""

from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.commands import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.orm import Session

    from records.models import Job, JobState

app = typer.Typer(
    help="List jobs; pause, cancel or extend one while it runs.", no_args_is_help=True
)

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
    from records import jobs
    from tuner.context import open_context

    with open_context(database, data_dir) as context, context.readers() as session:
        rows = [_described(session, job) for job in jobs.list_jobs(session)]
    if json_output:
        options.print_json({"jobs": rows})
        return
    _show(rows)


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
    with _changed(job, database, data_dir, json_output=json_output) as session:
        _stop(session, job, "paused")


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
    with _changed(job, database, data_dir, json_output=json_output) as session:
        _stop(session, job, "cancelled")


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
    from records import jobs
    from tuner.errors import RequestError

    if trials is None and seconds is None:
        raise RequestError("give --trials, --seconds, or both")
    if seconds is not None and not 0.0 < seconds < float("inf"):
        raise RequestError(f"--seconds must be above 0, got {seconds}")
    with _changed(job, database, data_dir, json_output=json_output) as session:
        jobs.raise_budget(session, job, trials=trials, secs=seconds)


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
    from records import jobs

    with _changed(job, database, data_dir, json_output=json_output) as session:
        jobs.set_priority(session, job, value)


@contextmanager
def _changed(
    job: int, database: str | None, data_dir: Path | None, *, json_output: bool
) -> "Iterator[Session]":
    """Open a transaction on a job that exists, and say afterwards what it is now."""
    from records import jobs
    from records.errors import NoSuchRow
    from tuner.context import open_context
    from tuner.errors import RequestError

    with open_context(database, data_dir) as context:
        with context.sessions.begin() as session:
            try:
                jobs.get_job(session, job)
            except NoSuchRow as error:
                raise RequestError(f"{error}; tuner jobs ls lists them") from error
            yield session
        with context.readers() as session:
            row = _described(session, jobs.get_job(session, job))
    if json_output:
        options.print_json(row)
        return
    _show([row])


def _stop(session: "Session", job_id: int, state: "JobState") -> None:
    from records import jobs
    from tuner.errors import RequestError

    if not jobs.set_state(session, job_id, state, only_from=("queued", "running", "paused")):
        raise RequestError(f"job {job_id} is {jobs.get_job(session, job_id).state}")


def _described(session: "Session", job: "Job") -> dict[str, Any]:
    from records import measures
    from records.models import Network, Target

    target = session.get_one(Target, job.target_id)
    return {
        "job": job.id,
        "state": job.state,
        "message": job.message,
        "network": session.get_one(Network, job.network_id).name,
        "target": target.spec,
        "device": target.device.get("name"),
        "objective": job.objective,
        "priority": job.priority,
        "trials": sum(measures.own_trials(session, job.id).values()),
        "budget_trials": job.budget_trials,
        "spent_secs": job.spent_secs,
        "budget_secs": job.budget_secs,
        "created": job.created.isoformat(),
        "updated": job.updated.isoformat(),
    }


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from tuner.progress import clock, stdout_console

    table = Table()
    for name in ("Job", "State", "Network", "Objective", "Priority", "Trials", "Time", "Changed"):
        numeric = name in ("Job", "Priority", "Trials", "Time")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name != "Network")
    for row in rows:
        limit = f"/{row['budget_trials']}" if row["budget_trials"] else ""
        time_limit = f"/{clock(row['budget_secs'])}" if row["budget_secs"] else ""
        changed = datetime.fromisoformat(row["updated"]).astimezone()
        table.add_row(
            str(row["job"]),
            row["state"],
            Text(row["network"]),
            row["objective"],
            str(row["priority"]),
            f"{row['trials']}{limit}",
            f"{clock(row['spent_secs'])}{time_limit}",
            f"{changed:%Y-%m-%d %H:%M}",
        )
    console = stdout_console()
    console.print(table)
    for row in rows:
        if row["message"]:
            console.print(f"job {row['job']}: {row['message']}", highlight=False, markup=False)
