"""``tuner bench``: time a library and check its outputs."""

from enum import StrEnum
from typing import Annotated

import typer

from tuner.cli import connection, options
from tuner.cli.console import print_json, print_note
from tuner.cli.options import option


class Runtime(StrEnum):
    """Names of other runtimes, as ``--against`` takes them."""

    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    TORCH = "torch"
    TORCH_CUDA_GRAPH = "torch-cuda-graph"
    TORCH_COMPILE = "torch-compile"
    ALL = "all"


def bench(
    library: options.LibraryArgument,
    against: Annotated[
        list[Runtime],
        option(
            "RUNTIME",
            "Compare outputs and time with onnxruntime, openvino, tensorrt, torch, "
            "torch-cuda-graph, torch-compile or all that are installed; repeat for several.",
            panel=options.MEASURING_PANEL,
        ),
    ] = [],
    model: options.LibraryModelOption = None,
    arrays: options.ArraysOption = None,
    shapes: options.ProgramShapesOption = [],
    random_weights: options.RandomWeightsOption = None,
    turns: Annotated[
        int,
        option(
            "N", "Number of turns of about 0.1 s each, at least 1.", panel=options.MEASURING_PANEL
        ),
    ] = 10,
    seed: options.InputSeedOption = 0,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Time a library; with --against, compare it with other runtimes.

    Runtimes are timed in turns. Prints median, mean and standard deviation of each, the ratio
    (below 1 the library is faster), the comparison of the outputs, and the error of the estimate
    from the records. Exit status 1 if an output differs.

    Examples:
        tuner bench mlp.lib --against all
        tuner bench bert.lib --against onnxruntime --model bert.onnx --inputs sentence.npz
    """
    from tuner import local
    from tuner.cli.rendering.comparison import show_comparison
    from tuner.compile.bench.benchmark import BenchRequest
    from tuner.compile.bench.comparison import as_json
    from tuner.errors import RequestError
    from tuner.jobs.requests import parse_inputs

    if turns < 1:
        raise RequestError(f"--turns must be at least 1, got {turns}")
    if (server := connection.chosen()) is not None:
        print_note(f"bench runs on this machine, not at {server.url}")
    request = BenchRequest(
        model=model,
        against=tuple(runtime.value for runtime in against),
        shapes=parse_inputs(shapes),
        random_weights=random_weights,
        arrays=arrays,
        n_turns=turns,
        seed=seed,
    )
    comparison = local.evaluate(library, request, {"data_dir": data_dir})
    if json_output:
        print_json(as_json(comparison))
    else:
        show_comparison(comparison)
    if not comparison.agrees:
        raise typer.Exit(1)
