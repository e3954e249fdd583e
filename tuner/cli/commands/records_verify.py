"""``tuner records verify``: measure the best records again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import connection, options
from tuner.cli.console import print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from tuner.tuning.remeasure_options import Remeasured, Verified, VerifyRequest

_MAX_ID = 2**31 - 1


def verify(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Only subgraphs of this network: a .onnx or .pt2 file, or zoo:NAME.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Only the N subgraphs that matter most: weight times latency.",
            show_default=False,
            min=1,
        ),
    ] = None,
    per_task: Annotated[
        int,
        typer.Option(metavar="K", help="So many of the best records of each.", min=1, max=1000),
    ] = 1,
    current: Annotated[
        bool,
        typer.Option("--current", help="The records of this version: has the machine changed?"),
    ] = False,
    foreign: Annotated[
        bool,
        typer.Option(
            "--foreign", help="Also what imported logs of other tools say of other targets."
        ),
    ] = False,
    job: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Only subgraphs of this job.",
            show_default=False,
            min=1,
            max=_MAX_ID,
        ),
    ] = None,
    target: options.TargetOption = "llvm",
    inputs: options.InputOption = [],  # noqa: B006  typer reads it, nobody writes it
    random_weights: options.RandomWeightsOption = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    sanitize: Annotated[
        bool,
        typer.Option(
            "--sanitize",
            help="Run those that agree under compute-sanitizer too (GPUs): a read beyond a buffer "
            "or a race makes a record wrong, whatever it computed.",
        ),
    ] = False,
    engine: options.EngineOption = None,
    rpc: options.RpcOption = None,
    ray_address: options.RayAddressOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Measure the best records of another version or device again, on this one.

    After an upgrade no record of before is used. This replays the best of them, compares what
    they compute with the reference, and stores them as records of this version: minutes, where
    tuning anew takes hours. What imported logs say is measured the same way. What was measured
    again is not measured a second time.

    Examples:
        tuner records verify --top 12

        tuner records verify squeezenet.onnx

        tuner records verify --current --top 5
    """
    from tuner.errors import RequestError
    from tuner.tuning.remeasure_options import VerifyRequest

    connection.refuse("records verify")
    if model is not None and job is not None:
        raise RequestError("MODEL and --job both say which subgraphs; give one")
    if model is None and (inputs or random_weights is not None):
        raise RequestError("--input and --random-weights are about a MODEL, and none is given")
    request = VerifyRequest(
        target=target,
        models=options.model_requests([model], target, inputs, random_weights)
        if model is not None
        else (),
        job=job,
        top=top,
        per_task=per_task,
        current=current,
        foreign=foreign,
        sanitize=sanitize,
    )
    where = {"engine": engine, "rpc": rpc, "ray_address": ray_address}
    found = _run(request, database, data_dir, where)
    if json_output:
        print_json(_as_json(found))
    else:
        _show(found, current=current)
    if found.rows and not found.n_verified:
        raise typer.Exit(1)


def _run(
    request: "VerifyRequest",
    database: str | None,
    data_dir: Path | None,
    where: dict[str, str | None],
) -> "Verified":
    from tuner.context import open_context
    from tuner.interrupts import interruptible
    from tuner.tuning.remeasure import verify_records

    with (
        interruptible(only_waiting=True),
        open_context(database, data_dir, **where) as context,
    ):
        return verify_records(context, request, _teller())


def _teller() -> "Callable[[int, int, Remeasured], None]":
    from tuner.cli.console import stderr_console

    console = stderr_console()

    def tell(number: int, n_all: int, row: "Remeasured") -> None:
        console.print(
            f"{number}/{n_all} {row.name}: {_outcome(row)}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    return tell


def _outcome(row: "Remeasured") -> str:
    from tuner.errors import last_line
    from tuner.formatting import milliseconds

    if row.latency is None:
        return ": ".join(filter(None, (row.error_kind or "failed", last_line(row.error_text))))
    before, after = milliseconds(row.old_latency), milliseconds(row.latency)
    return f"{before} -> {after} ms ({row.change or 0.0:+.1%})"


def _as_json(found: "Verified") -> dict[str, Any]:
    rows = [
        {
            **{name: value for name, value in vars(row).items() if not name.endswith("latency")},
            "differs": {name: list(pair) for name, pair in row.differs.items()},
            "old_latency_secs": row.old_latency,
            "latency_secs": row.latency,
            "change": row.change,
        }
        for row in found.rows
    ]
    return {
        "target": found.target,
        "verified": found.n_verified,
        "failed": len(found.rows) - found.n_verified,
        "left": found.n_left,
        "secs": found.secs,
        "records": rows,
    }


def _show(found: "Verified", *, current: bool) -> None:
    from tuner.cli.console import stdout_console
    from tuner.cli.rendering.stale_records import explain

    console = stdout_console()
    if found.rows:
        console.print(_table(found))
    elif current:
        console.print("There are no best records of this version yet: tuner tune makes them.")
    else:
        console.print("No subgraph has records of another version only.")
    for text in sorted({explain(row.differs) for row in found.rows if row.differs}):
        console.print(
            f"measured before, and now: {text}", style="dim", highlight=False, markup=False
        )
    left = f"; {found.n_left} more subgraphs are left" if found.n_left else ""
    console.print(
        f"{found.n_verified} of {len(found.rows)} records verified in {found.secs:.0f} s{left}",
        highlight=False,
    )


def _table(found: "Verified") -> "Table":
    from rich.table import Table
    from rich.text import Text

    from tuner.formatting import milliseconds

    table = Table(title="Measured again", title_justify="left")
    for name in ("Workload", "Task", "Weight", "Record", "Before (ms)", "Now (ms)", "Change"):
        left = name in ("Workload", "Task")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "Task")
    table.add_column("Result", no_wrap=True)
    for row in found.rows:
        moved = row.record not in (None, row.old_record)
        table.add_row(
            row.workload,
            Text(row.name),
            str(row.weight),
            f"{row.old_record} -> {row.record}" if moved else str(row.old_record),
            milliseconds(row.old_latency),
            milliseconds(row.latency),
            "-" if row.change is None else f"{row.change:+.1%}",
            Text("verified") if row.error_kind is None else Text(row.error_kind, "red"),
        )
    return table
