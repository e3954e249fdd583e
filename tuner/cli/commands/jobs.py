"""``tuner jobs``: list, label, compare, wait for, stop, resume, release or hide jobs."""

from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import options
from tuner.cli.backends import Action, open_backend
from tuner.cli.console import print_json, print_line, print_prose
from tuner.cli.options import argument, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.schemas import JobSummary

app = typer.Typer(
    help="List, label and compare jobs; wait for, pause, resume, cancel, extend or remove one.",
    no_args_is_help=True,
)

JobArgument = Annotated[int, argument("JOB", "Number of the job.", min=1, max=2**31 - 1)]


@app.command("ls")
def ls(
    tags: Annotated[list[str], option("TAG", "List the jobs with this tag.", "--tag")] = [],
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List all jobs, newest first, or those that have all of some tags.

    Examples:
        tuner jobs ls
        tuner jobs ls --tag release
    """
    from tuner.cli.rendering.json_output import job_as_json
    from tuner.jobs.spec import make_spec

    with open_backend(database, data_dir) as backend:
        jobs = backend.jobs(make_spec({"tag": tags}).tag)
    if json_output:
        print_json({"jobs": [job_as_json(job) for job in jobs]})
        return
    _show(jobs)


@app.command("wait")
def wait(
    job: JobArgument,
    timeout: Annotated[
        float | None, option("SECONDS", "Stop waiting after this time; the job continues.", min=0)
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Wait until a job has ended or is paused; exit with 0 if it is done, otherwise with 1.

    Example:
        tuner jobs wait 3 --timeout 3600
    """
    from tuner.interrupts import interruptible

    with interruptible(), open_backend(database, data_dir) as backend:
        summary = backend.wait(job, float("inf") if timeout is None else timeout)
    _report(summary, json_output=json_output)
    if summary.state != "done":
        raise typer.Exit(1)


@app.command("webhook-secret")
def webhook_secret(json_output: options.JsonOption = False) -> None:
    """Print the secret with which the server signs the webhooks of this token's jobs.

    Example:
        tuner jobs webhook-secret
    """
    from tuner.cli import connection

    with connection.connect({}) as client:
        secret = client.webhook_secret()
    if json_output:
        print_json({"secret": secret})
        return
    print_line(secret)


@app.command("compare")
def compare(
    a: JobArgument,
    b: Annotated[int, argument("OTHER", "Number of another job.", min=1, max=2**31 - 1)],
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Compare two jobs workload by workload, by what each of them measured.

    Jobs from before and after a new driver, compiler or tuner show which kernels it made slower.

    Example:
        tuner jobs compare 3 4
    """
    from tuner.cli.console import stdout_console
    from tuner.cli.rendering.json_output import comparison_as_json
    from tuner.cli.rendering.tables import comparison_table

    with open_backend(database, data_dir) as backend:
        compared = backend.compare(a, b)
    if json_output:
        print_json(comparison_as_json(compared))
        return
    first, second = compared.a, compared.b
    title = f"A: job {first.id}, {first.name}. B: job {second.id}, {second.name}."
    stdout_console().print(comparison_table(compared.tasks, title))
    print_prose(f"Latencies are those of each job's own trials, without finals. {compared.verdict}")


_ACTIONS: dict[Action, str] = {
    "pause": """Stop a job after its running round; `tuner tune` or `jobs resume` continues it.""",
    "cancel": """Stop a job after its running round and mark it as cancelled; its records stay.""",
    "resume": """Continue a job of the service that was paused or cancelled, or that failed.

    To continue a job of the command line, run `tuner tune` with the same network.""",
    "release": """Queue a quarantined job, and its quarantined builds, again.

    The service quarantines a job over which its worker's process died three times.""",
}


def _add(action: Action, text: str) -> None:
    def act(
        job: JobArgument,
        database: options.DatabaseOption = None,
        data_dir: options.DataDirOption = None,
        json_output: options.JsonOption = False,
    ) -> None:
        with open_backend(database, data_dir) as backend:
            _report(backend.act(job, action), json_output=json_output)

    act.__doc__ = f"{text}\n\n    Example:\n        tuner jobs {action} 3\n    "
    app.command(action)(act)


for _action, _text in _ACTIONS.items():
    _add(_action, _text)


@app.command("rm")
def rm(
    job: JobArgument,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Remove a job that does not run from the list; its records stay in use.

    Example:
        tuner jobs rm 3
    """
    with open_backend(database, data_dir) as backend:
        backend.delete(job)
    if json_output:
        print_json({"job": job, "deleted": True})
        return
    print_line(f"job {job} is removed from the list; its records stay")


@app.command("budget")
def budget(
    job: JobArgument,
    trials: Annotated[
        int | None, option("N", "New limit of trials in all.", min=1, max=10**9)
    ] = None,
    seconds: Annotated[float | None, option("SECONDS", "New limit of time in all.")] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Raise a limit of a job; a running job continues up to it.

    A lower limit has no effect, nor has a limit of a kind that the job lacks.

    Example:
        tuner jobs budget 3 --trials 2000
    """
    from tuner.errors import RequestError

    if trials is None and seconds is None:
        raise RequestError("give --trials, --seconds, or both")
    if seconds is not None and not 0.0 < seconds < float("inf"):
        raise RequestError(f"--seconds must be above 0, got {seconds}")
    with open_backend(database, data_dir) as backend:
        _report(backend.raise_budget(job, trials, seconds), json_output=json_output)


@app.command("priority")
def priority(
    job: JobArgument,
    value: Annotated[
        int, argument("PRIORITY", "New priority; each step doubles the share.", min=-30, max=30)
    ],
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Change the share of device time that a job gets while other jobs run.

    Example:
        tuner jobs priority 3 2
    """
    with open_backend(database, data_dir) as backend:
        _report(backend.set_priority(job, value), json_output=json_output)


@app.command("label")
def label(
    job: JobArgument,
    tags: Annotated[
        list[str],
        option(
            "TAG", "Replace the tags of the job by this one; repeatable. '' removes them.", "--tag"
        ),
    ] = [],
    note: Annotated[str | None, option("TEXT", "Replace the note; '' removes it.")] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Replace the tags of a job, its note, or both.

    Example:
        tuner jobs label 3 --tag release --note "before the new driver"
    """
    from tuner.errors import RequestError
    from tuner.jobs.spec import make_spec

    if not tags and note is None:
        raise RequestError("give --tag, --note, or both")
    replaced = make_spec({"tag": tags}).tag if tags else None
    with open_backend(database, data_dir) as backend:
        _report(backend.label(job, replaced, note), json_output=json_output)


def _report(job: "JobSummary", *, json_output: bool) -> None:
    """Print a job after a change."""
    from tuner.cli.rendering.json_output import job_as_json

    if json_output:
        print_json(job_as_json(job))
        return
    _show([job])


def _show(jobs: "Sequence[JobSummary]") -> None:
    from tuner.cli.console import stdout_console
    from tuner.cli.rendering.tables import job_table
    from tuner.formatting import printable

    console = stdout_console()
    console.print(job_table(jobs))
    for job in jobs:
        for text in filter(None, (job.message, job.note)):
            console.print(f"job {job.id}: {printable(text)}", highlight=False, markup=False)
