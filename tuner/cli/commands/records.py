"""``tuner records``: look at measurements, carry them out and in."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import options
from tuner.cli.backends import open_backend
from tuner.cli.commands import records_distill, records_logs, records_verify
from tuner.cli.console import print_json

if TYPE_CHECKING:
    from tuner.schemas import BestView, RecordView

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
    from tuner.cli.rendering.record_tables import show_bests

    with open_backend(database, data_dir) as source:
        rows = source.bests(workload, job)
    if json_output:
        print_json({"records": [_as_json(row) for row in rows]})
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
    from tuner.cli.rendering.record_tables import show_records

    with open_backend(database, data_dir) as source:
        rows = source.records(workload, task, failed=failed, limit=limit)
    if json_output:
        print_json({"records": [_as_json(row) for row in rows]})
        return
    show_records(rows, limit)


app.command("export")(records_logs.export)
app.command("import")(records_logs.import_)
app.command("distill")(records_distill.distill)
app.command("verify")(records_verify.verify)


def _as_json(row: "BestView | RecordView") -> dict[str, Any]:
    return {**vars(row), "created": row.created.isoformat()}
