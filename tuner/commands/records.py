"""``tuner records``: look at measurements, carry them out and in."""

from typing import IO, TYPE_CHECKING, Annotated, cast

import typer

from tuner.commands import options, record_tables, streams

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

app = typer.Typer(
    help="Look at measurements, and carry them from one database to another.",
    no_args_is_help=True,
)

_MAX_ID = 2**31 - 1

WorkloadOption = Annotated[
    str | None,
    typer.Option(
        "--workload", metavar="HASH", help="Only records of this workload.", show_default=False
    ),
]


@app.command("best")
def best(
    workload: WorkloadOption = None,
    job: Annotated[
        int | None, typer.Option(help="Only tasks of this job.", show_default=False)
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List the best record of every task: the fastest verified one.

    Confirmed means that the latency was measured again, in turns with its rivals.

    Example:
        tuner records best --job 3
    """
    from tuner.context import open_context

    with open_context(database, data_dir) as context, context.readers() as session:
        _check_workload(session, workload)
        rows = record_tables.read_bests(session, workload, job)
        targets = record_tables.targets_of(session, rows)
    if json_output:
        options.print_json({"records": [record_tables.with_target(row, targets) for row in rows]})
        return
    record_tables.show_bests(rows, targets)


@app.command("list")
def list_records(
    workload: WorkloadOption = None,
    task: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Only records of this task.",
            show_default=False,
            min=1,
            max=_MAX_ID,
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only trials that failed.")] = False,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="At most so many.")
    ] = 50,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List measure records, the newest first: their samples, or the error instead.

    Example:
        tuner records list --failed --limit 10
    """
    from tuner.context import open_context

    with open_context(database, data_dir) as context, context.readers() as session:
        _check_workload(session, workload)
        _check_task(session, task)
        rows = record_tables.read_records(session, workload, task, failed=failed, limit=limit)
        targets = record_tables.targets_of(session, rows)
    if json_output:
        options.print_json({"records": [record_tables.with_target(row, targets) for row in rows]})
        return
    record_tables.show_records(rows, targets, limit)


@app.command("export")
def export(
    file: Annotated[
        str, typer.Argument(help="Where to write the log; - is stdout.", show_default=False)
    ],
    target_id: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Only records of this target; tuner records best numbers them.",
            show_default=False,
            min=1,
            max=_MAX_ID,
        ),
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Write every record to a log of JSON lines, which another database can import.

    The file is complete or not there: it is written beside its place and moved when it is whole.

    Example:
        tuner records export measured.jsonl
    """
    from records import log
    from tuner.context import open_context
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible

    if file == streams.STANDARD and json_output:
        raise RequestError("--json and - do not go together: both print on stdout")
    with open_context(database, data_dir) as context, context.readers() as session:
        _check_target(session, target_id)
        with interruptible(), streams.output(file) as stream:
            n_records = log.export(
                session, cast("IO[str]", streams.RecordCounter(stream)), target_id
            )
    if json_output:
        options.print_json({"file": file, "records": n_records})
    else:
        streams.say(f"exported {n_records} records to {file}", to_stderr=file == streams.STANDARD)


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(help="The log to read; - is stdin.", show_default=False)],
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Read a log that tuner records export wrote; records that are known are not added again.

    All of it or nothing: a damaged line undoes the import. Only a last line that was cut off is
    passed over, and reported as torn.

    Example:
        tuner records import measured.jsonl
    """
    from records import log
    from records.errors import BadLog
    from tuner.context import open_context
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible

    with (
        interruptible(),
        streams.input_(file) as stream,
        open_context(database, data_dir) as context,
    ):
        try:
            with context.sessions.begin() as session:
                report = log.import_(session, stream)
        except BadLog as error:
            raise RequestError(f"cannot import {file}: {error}; nothing was kept") from error
    if json_output:
        counts = {"added": report.n_added, "known": report.n_known, "torn": report.n_bad}
        options.print_json({"file": file, **counts})
        return
    torn = ", the last line was torn and left out" if report.n_bad else ""
    streams.say(f"imported {file}: {report.n_added} records added, {report.n_known} known{torn}")


def _check_workload(session: "Session", workload: str | None) -> None:
    from sqlalchemy import select

    from records.models import Workload
    from tuner.errors import RequestError

    if workload is None:
        return
    # PostgreSQL refuses NUL and lone surrogates in any text, even one to compare with.
    known = (
        workload.isprintable()
        and session.scalars(select(Workload.id).where(Workload.hash == workload).limit(1)).first()
    )
    if not known:
        raise RequestError(f"no workload {workload!r}; tuner tasks MODEL lists hashes")


def _check_task(session: "Session", task: int | None) -> None:
    from records.models import Task
    from tuner.errors import RequestError

    if task is not None and session.get(Task, task) is None:
        raise RequestError(f"no task {task}; tuner records list shows their numbers")


def _check_target(session: "Session", target_id: int | None) -> None:
    from sqlalchemy import select

    from records.models import Target
    from tuner.errors import RequestError

    known = list(session.scalars(select(Target).order_by(Target.id)))
    if target_id is not None and target_id not in [target.id for target in known]:
        names = "; ".join(f"{target.id} ({record_tables.device_name(target)})" for target in known)
        raise RequestError(f"no target {target_id}; known are {names or 'none yet'}")
