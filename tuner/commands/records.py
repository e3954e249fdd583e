"""``tuner records``: look at measurements, carry them out and in."""

from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import typer

from tuner.commands import options, records_verify, streams
from tuner.commands.sources import open_source

if TYPE_CHECKING:
    from tuner.views import BestView, RecordView

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
    from tuner.commands.record_tables import show_bests

    with open_source(database, data_dir) as source:
        rows = source.bests(workload, job)
    if json_output:
        options.print_json({"records": [_as_json(row) for row in rows]})
        return
    show_bests(rows)


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
    from tuner.commands.record_tables import show_records

    with open_source(database, data_dir) as source:
        rows = source.records(workload, task, failed=failed, limit=limit)
    if json_output:
        options.print_json({"records": [_as_json(row) for row in rows]})
        return
    show_records(rows, limit)


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
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible

    if file == streams.STANDARD and json_output:
        raise RequestError("--json and - do not go together: both print on stdout")
    with (
        open_source(database, data_dir) as source,
        interruptible(),
        streams.output(file) as stream,
    ):
        n_records = source.export(cast("IO[str]", streams.RecordCounter(stream)), target_id)
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
    from tuner.interrupts import interruptible

    with (
        interruptible(),
        streams.input_(file) as stream,
        open_source(database, data_dir) as source,
    ):
        report = source.import_(stream, file)
    if json_output:
        options.print_json({"file": file, **vars(report)})
        return
    torn = ", the last line was torn and left out" if report.torn else ""
    streams.say(f"imported {file}: {report.added} records added, {report.known} known{torn}")


app.command("verify")(records_verify.verify)


def _as_json(row: "BestView | RecordView") -> dict[str, Any]:
    return {**vars(row), "created": row.created.isoformat()}
