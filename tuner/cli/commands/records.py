"""``tuner records``: list, export, import, distill and verify measure records."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import options
from tuner.cli.backends import open_backend
from tuner.cli.commands import records_distill, records_logs, records_verify
from tuner.cli.console import print_json

if TYPE_CHECKING:
    from tuner.schemas import BestView, RecordView

app = typer.Typer(
    help="List, export, import and verify measure records.",
    no_args_is_help=True,
)

_MAX_ID = 2**31 - 1

WorkloadOption = Annotated[
    str | None,
    typer.Option(
        "--workload", metavar="HASH", help="List records of this workload only.", show_default=False
    ),
]


@app.command("best")
def best(
    workload: WorkloadOption = None,
    job: Annotated[
        int | None,
        typer.Option(metavar="JOB", help="List tasks of this job only.", show_default=False),
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List the best record of every task: the fastest verified one.

    A confirmed record was measured again, in turns with its closest rivals.

    Example:
        tuner records best --job 3
    """
    from tuner.cli.rendering.record_tables import show_bests

    with open_backend(database, data_dir) as backend:
        rows = backend.bests(workload, job)
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
            help="List records of this task only.",
            show_default=False,
            min=1,
            max=_MAX_ID,
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="List failed trials only.")] = False,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="Maximum number of records.")
    ] = 50,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List measure records, newest first, with their samples or their error.

    Example:
        tuner records list --failed --limit 10
    """
    from tuner.cli.rendering.record_tables import show_records

    with open_backend(database, data_dir) as backend:
        rows = backend.records(workload, task, failed=failed, limit=limit)
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
