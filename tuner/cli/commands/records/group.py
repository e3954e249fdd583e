"""``tuner records``: list, show, export, import, distill and verify measure records."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import connection, options
from tuner.cli.backends import WorkloadFilter, open_backend
from tuner.cli.commands.records import distill, logs, verify
from tuner.cli.console import print_json
from tuner.cli.options import argument, flag, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.engines.base import KernelPart
    from tuner.schemas import BestView, RecordView

app = typer.Typer(
    help="List, show, export, import and verify measure records.",
    no_args_is_help=True,
)

_MAX_TASK = 2**31 - 1
_MAX_RECORD = 2**53 - 1

WorkloadOption = Annotated[
    str | None,
    option(
        "HASH",
        "List records of the workload with this hash, or beginning of a hash, only.",
    ),
]
NameOption = Annotated[
    str | None,
    option("TEXT", "List records of workloads with this text in their name only."),
]


@app.command("best")
def best(
    workload: WorkloadOption = None,
    name: NameOption = None,
    job: Annotated[int | None, option("JOB", "List tasks of this job only.")] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List the best record of every task: the fastest verified one.

    A confirmed record was measured again, in turns with its closest rivals.

    Example:
        tuner records best --job 3
    """
    from tuner.cli.rendering.records.record_tables import show_bests

    with open_backend(database, data_dir) as backend:
        rows = backend.bests(WorkloadFilter(workload, name), job)
    if json_output:
        print_json({"records": [_as_json(row) for row in rows]})
        return
    show_bests(rows)


@app.command("list")
def list_records(
    workload: WorkloadOption = None,
    name: NameOption = None,
    task: Annotated[
        int | None, option("N", "List records of this task only.", min=1, max=_MAX_TASK)
    ] = None,
    failed: Annotated[bool, flag("--failed", "List failed trials only.")] = False,
    limit: Annotated[int, option("N", "Maximum number of records.", min=1, max=100_000)] = 50,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List measure records, newest first, with their samples or their error.

    Example:
        tuner records list --failed --limit 10
    """
    from tuner.cli.rendering.records.record_tables import show_records

    with open_backend(database, data_dir) as backend:
        rows = backend.records(WorkloadFilter(workload, name), task, failed=failed, limit=limit)
    if json_output:
        print_json({"records": [_as_json(row) for row in rows]})
        return
    show_records(rows, limit)


@app.command("show")
def show(
    record: Annotated[int, argument("RECORD", "Number of the record.", min=1, max=_MAX_RECORD)],
    schedule: Annotated[
        bool,
        flag(
            "--schedule",
            "Print the scheduled program as TIR, or the configuration of a Triton kernel.",
        ),
    ] = False,
    source: Annotated[
        bool, flag("--source", "Print the source that is compiled: LLVM, CUDA or Triton.")
    ] = False,
    assembly: Annotated[
        bool, flag("--assembly", "Print the instructions of the kernel; PTX for a GPU.")
    ] = False,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Show a measure record: its samples or error, where it comes from, its code.

    The code is compiled again from the trace, on this machine or by a worker of the server.

    Examples:
        tuner records show 20
        tuner records show 20 --assembly
    """
    from tuner.cli.rendering.records.record_tables import show_record
    from tuner.interrupts import interruptible

    flags: dict[KernelPart, bool] = {
        "schedule": schedule,
        "source": source,
        "assembly": assembly,
    }
    parts = [part for part, is_requested in flags.items() if is_requested]
    with open_backend(database, data_dir) as backend:
        details = backend.record(record)
    code: Mapping[str, str] = {}
    if parts and connection.chosen() is not None:
        with connection.connect({}) as client, interruptible():
            code = client.record_code(record, *parts)
    elif parts:
        from tuner.compile.kernel_code import print_kernel
        from tuner.context import open_context

        with interruptible(only_waiting=True), open_context(database, data_dir) as context:
            code = print_kernel(context, record, parts)
    if json_output:
        print_json({**_as_json(details), "code": code})
        return
    show_record(details, code)


app.command("export")(logs.export)
app.command("import")(logs.import_)
app.command("distill")(distill.distill)
app.command("verify")(verify.verify)


def _as_json(row: "BestView | RecordView") -> dict[str, Any]:
    return {**vars(row), "created": row.created.isoformat()}
