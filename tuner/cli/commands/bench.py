"""``tuner bench``: time a library and check its outputs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from tuner.cli import connection, options
from tuner.cli.console import print_json, print_note


def bench(
    library: Annotated[
        Path,
        typer.Argument(metavar="LIBRARY", help="Folder of the library.", show_default=False),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model that the library was built from.",
            show_default=False,
            rich_help_panel=options.MODEL_PANEL,
        ),
    ] = None,
    inputs: options.InputOption = [],  # noqa: B006  typer reads it, nothing writes it
    random_weights: options.RandomWeightsOption = None,
    against: Annotated[
        Literal["onnxruntime", "torch"] | None,
        typer.Option(
            metavar="RUNTIME",
            help="Compare outputs and time with onnxruntime or torch; needs --model.",
            show_default=False,
            rich_help_panel=options.MEASURING_PANEL,
        ),
    ] = None,
    turns: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Number of turns of about 0.1 s each, at least 1.",
            rich_help_panel=options.MEASURING_PANEL,
        ),
    ] = 10,
    seed: Annotated[
        int,
        typer.Option(
            metavar="SEED",
            help="Seed of the random inputs.",
            rich_help_panel=options.MEASURING_PANEL,
        ),
    ] = 0,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Time a library; with --against, compare it with another runtime.

    Both runtimes are timed in turns. Prints the median, mean and standard deviation of the
    latency, the ratio (below 1 the library is faster), the largest errors of the outputs, and the
    error of the estimate from the records. Exit status 1 if the outputs differ.

    Example:
        tuner bench squeezenet.lib --against onnxruntime --model squeezenet.onnx
    """
    from tuner import local
    from tuner.cli.rendering.comparison import comparison_as_json, show_comparison
    from tuner.errors import RequestError
    from tuner.jobs.model_cache import ModelQuery
    from tuner.jobs.requests import parse_inputs

    if (against is None) != (model is None):
        raise RequestError("--against and --model go together; give both or neither")
    if turns < 1:
        raise RequestError(f"--turns must be at least 1, got {turns}")
    if (server := connection.chosen()) is not None:
        print_note(f"bench runs on this machine, not at {server.url}")
    query = None
    if model is not None:
        runtime = "torch" if model.endswith(".pt2") else "onnxruntime"
        if against != runtime:
            raise RequestError(f"{model} needs --against {runtime}, not {against}")
        query = ModelQuery(model, parse_inputs(inputs), random_weights)
    comparison = local.evaluate(library, query, {"data_dir": data_dir}, n_turns=turns, seed=seed)
    if json_output:
        print_json(comparison_as_json(comparison))
    else:
        show_comparison(comparison)
    if not comparison.agrees:
        raise typer.Exit(1)
