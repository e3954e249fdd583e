"""``tuner bench``: is it right, and is it fast?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tuner.cli import connection, options
from tuner.cli.console import print_json, print_note

if TYPE_CHECKING:
    from tuner.compile.benchmark import Comparison


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
    from tuner.cli.backends import execution
    from tuner.errors import RequestError
    from tuner.jobs.known_models import ModelQuery

    if (against is None) != (model is None):
        raise RequestError("--against and --model go together: both or neither")
    if turns < 1:
        raise RequestError(f"--turns must be at least 1, got {turns}")
    if (service := connection.chosen()) is not None:
        print_note(f"bench times the library on this machine, not at {service.url}")
    wanted = None
    if model is not None:
        runtime = "torch" if model.endswith(".pt2") else "onnxruntime"
        if against != runtime:
            raise RequestError(f"{model} is compared with --against {runtime}, not {against}")
        wanted = ModelQuery(model, options.parse_inputs(inputs), random_weights)
    found = execution.bench(library, wanted, {"data_dir": data_dir}, n_turns=turns, seed=seed)
    if json_output:
        print_json(found.as_json())
    else:
        _report(found)
    if not found.agrees:
        raise typer.Exit(1)


def _report(found: "Comparison") -> None:
    from tuner.cli.console import stdout_console
    from tuner.cli.rendering.tables import milliseconds

    console = stdout_console()

    def line(label: str, text: str) -> None:
        console.print(f"{label:<12} {text}", highlight=False)

    line("library", f"{milliseconds(found.library_secs)} ms median, {found.n_threads} threads")
    line(
        "",
        f"{milliseconds(found.mean_secs)} ms mean, {milliseconds(found.stdev_secs)} ms standard "
        f"deviation, {len(found.library_samples)} samples",
    )
    if found.estimated_secs:
        off = found.estimated_secs / found.library_secs - 1
        line("estimate", f"{milliseconds(found.estimated_secs)} ms by the records ({off:+.1%})")
    if found.peer_secs is None or found.ratio is None:
        return
    line(str(found.peer), f"{milliseconds(found.peer_secs)} ms median, same threads, in turns")
    verdict = (
        f"{1 / found.ratio - 1:.0%} faster" if found.ratio < 1 else f"{found.ratio - 1:.0%} slower"
    )
    line("ratio", f"{found.ratio:.3f} ({verdict})")
    verdict = "outputs agree" if found.agrees else "[red]outputs differ[/red]"
    line(
        "outputs",
        f"{verdict}: max absolute error {found.absolute_error:.3g}, relative "
        f"{found.relative_error:.3g}",
    )
    if found.degenerate:
        console.print(
            "note: the output is one constant, so that it agrees proves little; "
            "tune, build and bench with --random-weights 0",
            style="yellow",
            highlight=False,
        )
