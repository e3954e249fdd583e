"""``tuner build``: apply the history best, compile, cache."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.commands import connection, options

if TYPE_CHECKING:
    from tuner.commands.outcomes import Library
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
    from tuner.building import check_out
    from tuner.preparation import ModelRequest

    request = ModelRequest(model, target, options.parse_inputs(inputs), random_weights)
    check_out(out)
    if connection.chosen() is None:
        library = _build_here(request, out, database, data_dir, strict=strict)
    else:
        from tuner.commands.remote import building

        with connection.connect(database, data_dir) as client:
            library = building.run(client, request, out, strict=strict)
    if json_output:
        options.print_json(library.as_json())
        return
    library.show()


def _build_here(
    request: "ModelRequest", out: Path, database: str | None, data_dir: Path | None, *, strict: bool
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
        prepared = prepare(request, context.settings, context.sessions, worker, must_run=False)
        return built_here(build_library(context, prepared, worker, out, strict=strict))
