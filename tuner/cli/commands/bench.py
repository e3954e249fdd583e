"""``tuner bench``: is it right, and is it fast?"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from tuner.cli import connection, options
from tuner.cli.console import print_json, print_note


def bench(
    library: Annotated[Path, typer.Argument(help="Folder of a built library.", show_default=False)],
    against: Annotated[
        Literal["onnxruntime", "torch"] | None,
        typer.Option(help="Compare outputs and time with this runtime.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model the library was built from.", show_default=False),
    ] = None,
    inputs: options.InputOption = [],  # noqa: B006  typer reads it, nobody writes it
    random_weights: options.RandomWeightsOption = None,
    turns: Annotated[
        int, typer.Option(help="Turns, each of about a tenth of a second, at least 1.")
    ] = 10,
    seed: Annotated[int, typer.Option(help="Seeds the random inputs.")] = 0,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Time a library; with --against, check its outputs and time both in turns.

    Prints medians, mean and standard deviation, the ratio (below 1: the library is faster), the
    largest errors, and how far the scheduler's estimate was off. Outputs that differ are a
    failure: exit status 1.

    Example:
        tuner bench squeezenet.lib --against onnxruntime --model squeezenet.onnx
    """
    from tuner import local
    from tuner.cli.rendering.comparison import comparison_as_json, show_comparison
    from tuner.errors import RequestError
    from tuner.jobs.known_models import ModelQuery
    from tuner.jobs.requests import parse_inputs

    if (against is None) != (model is None):
        raise RequestError("--against and --model go together: both or neither")
    if turns < 1:
        raise RequestError(f"--turns must be at least 1, got {turns}")
    if (service := connection.chosen()) is not None:
        print_note(f"bench times the library on this machine, not at {service.url}")
    query = None
    if model is not None:
        runtime = "torch" if model.endswith(".pt2") else "onnxruntime"
        if against != runtime:
            raise RequestError(f"{model} is compared with --against {runtime}, not {against}")
        query = ModelQuery(model, parse_inputs(inputs), random_weights)
    comparison = local.evaluate(library, query, {"data_dir": data_dir}, n_turns=turns, seed=seed)
    if json_output:
        print_json(comparison_as_json(comparison))
    else:
        show_comparison(comparison)
    if not comparison.agrees:
        raise typer.Exit(1)
