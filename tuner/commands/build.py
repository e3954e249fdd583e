"""``tuner build``: apply the history best, compile, cache."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.commands import options

if TYPE_CHECKING:
    from tuner.building import Built


def build(
    model: options.Model,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the library; a library in it is replaced.",
            show_default=False,
        ),
    ],
    target: options.TargetOption = "llvm",
    inputs: options.InputOption = [],  # noqa: B006  typer reads it, nobody writes it
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if a subgraph has no record.")
    ] = False,
    random_weights: options.RandomWeightsOption = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Compile a network with the best record of each subgraph, and say what was used.

    A subgraph without a record is compiled unscheduled, which is slow: the report calls it a
    fallback, and --strict makes it an error. What was compiled before is not compiled again.

    Example:
        tuner build squeezenet.onnx -o squeezenet.lib
    """
    from tuner.building import build_library, check_out
    from tuner.context import open_context
    from tuner.interrupts import interruptible
    from tuner.preparation import ModelRequest, prepare
    from tuner.workers import fresh_worker

    request = ModelRequest(model, target, options.parse_inputs(inputs), random_weights)
    check_out(out)
    with (
        interruptible(only_waiting=True),
        open_context(database, data_dir) as context,
        fresh_worker(context.settings) as worker,
    ):
        prepared = prepare(request, context.settings, context.sessions, worker, must_run=False)
        built = build_library(context, prepared, worker, out, strict=strict)
    described = built.manifest
    if json_output:
        options.print_json(
            {
                "library": str(built.folder),
                "cached": built.cached,
                "estimated_secs": described.estimated_secs,
                "tuned": len(described.subgraphs) - len(built.fallbacks),
                "fallbacks": len(built.fallbacks),
                "subgraphs": [vars(entry) for entry in described.subgraphs],
                "files": dict(described.files),
            }
        )
        return
    _report(built)


def _report(built: "Built") -> None:
    from rich.table import Table

    from tuner.progress import milliseconds, stdout_console

    console = stdout_console()
    table = Table(title="Coverage", title_justify="left")
    for name in ("Workload", "Task", "Calls", "Built from", "Latency (ms)"):
        table.add_column(name, justify="right" if name in ("Calls", "Latency (ms)") else "left")
    for entry in built.manifest.subgraphs:
        source = "[yellow]fallback[/yellow]" if entry.record is None else f"record {entry.record}"
        latency = "-" if entry.latency is None else milliseconds(entry.latency)
        table.add_row(entry.workload, entry.name, str(entry.n_calls), source, latency)
    console.print(table)
    n_all = len(built.manifest.subgraphs)
    n_tuned = n_all - len(built.fallbacks)
    estimate = built.manifest.estimated_secs
    console.print(
        f"{'Cached' if built.cached else 'Built'} {built.folder}: {n_tuned} of {n_all} subgraphs "
        f"tuned" + (f", estimated {milliseconds(estimate)} ms" if estimate is not None else ""),
        highlight=False,
    )
    if built.fallbacks:
        console.print("Fallbacks are unscheduled and slow: tune the network first.", style="yellow")
