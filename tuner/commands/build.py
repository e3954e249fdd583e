"""``tuner build``: apply the history best, compile what is new, cache."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.commands import connection, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.building import BuildOptions
    from tuner.commands.outcomes import Library
    from tuner.compiling import Step
    from tuner.preparation import ModelRequest


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
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say of every subgraph that is compiled why it has to be."),
    ] = False,
    random_weights: options.RandomWeightsOption = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Compile a network with the best record of each subgraph, and say what was used.

    A subgraph without a record is compiled unscheduled, which is slow: the report calls it a
    fallback, and --strict makes it an error. Nothing is compiled twice: neither a library, nor
    a subgraph that any network had before.

    Several sets of input shapes give one library with a program for each; a call runs the one
    that its shapes ask for.

    Examples:
        tuner build squeezenet.onnx -o squeezenet.lib

        tuner build model.onnx --input data=1,3,224,224 --input data=8,3,224,224 -o model.lib
    """
    from tuner.building import BuildOptions, check_out
    from tuner.errors import RequestError

    requests = options.model_requests([model], target, inputs, random_weights)
    check_out(out)
    if connection.chosen() is None:
        how = BuildOptions(strict, explain)
        if not json_output:
            how = replace(how, tell=_teller(explain=explain))
        library = _build_here(requests, out, database, data_dir, how)
    else:
        from tuner.commands.remote import building

        if len(requests) > 1 or explain:
            raise RequestError(
                "a service builds for one set of input shapes and does not --explain"
            )
        with connection.connect(database, data_dir) as client:
            library = building.run(client, requests[0], out, strict=strict)
    if json_output:
        options.print_json(library.as_json())
        return
    library.show()


def _build_here(
    requests: "list[ModelRequest]",
    out: Path,
    database: str | None,
    data_dir: Path | None,
    how: "BuildOptions",
) -> "Library":
    from tuner.building import build_library
    from tuner.commands.outcomes import built_here
    from tuner.context import open_context
    from tuner.interrupts import interruptible
    from tuner.preparation import prepare
    from tuner.workers import fresh_worker

    with (
        interruptible(only_waiting=True),
        open_context(database, data_dir) as context,
        fresh_worker(context.settings) as worker,
    ):
        prepared = [
            prepare(request, context.settings, context.sessions, worker, must_run=False)
            for request in requests
        ]
        return built_here(build_library(context, prepared, worker, out, how))


def _teller(*, explain: bool) -> "Callable[[Step], None]":
    """Return what prints a line a subgraph, and lines that explain a miss."""
    from tuner.commands.explanations import explain_miss
    from tuner.progress import stderr_console

    console = stderr_console()

    def tell(step: "Step") -> None:
        if step.hit:
            console.print(f"Cache hit: {step.name}", highlight=False, soft_wrap=True)
            return
        console.print(
            f"Compiled in {step.secs:.2f} s: {step.name}", highlight=False, soft_wrap=True
        )
        for line in explain_miss(step.why) if explain else ():
            console.print(f"  {line}", style="dim", highlight=False, soft_wrap=True)

    return tell
