"""``tuner libraries``: compare libraries."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import hints, options
from tuner.cli.console import print_json, print_line, print_note

app = typer.Typer(help="Compare libraries.", no_args_is_help=True)
_TIMING_PANEL = "With --time"


@app.callback()
def libraries() -> None:
    """Compare libraries."""


@app.command("compare")
def compare(
    library: Annotated[
        Path,
        typer.Argument(
            metavar="LIBRARY",
            help="Folder of the older library; with --time, or a file that "
            "'tuner profile --json' wrote.",
            show_default=False,
        ),
    ],
    other: Annotated[
        Path, typer.Argument(metavar="OTHER", help="Folder of another library.", show_default=False)
    ],
    time: Annotated[
        bool,
        typer.Option(
            "--time",
            help="Time each kernel of both in turns on this machine.",
            rich_help_panel=_TIMING_PANEL,
        ),
    ] = False,
    max_slowdown: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Largest increase of a time that does not count [default: 3%].",
            show_default=False,
            rich_help_panel=_TIMING_PANEL,
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of profiled runs of each, at least 40 [default: 80].",
            show_default=False,
            rich_help_panel=_TIMING_PANEL,
        ),
    ] = None,
    arrays: options.ArraysOption = None,
    shapes: options.ProgramShapesOption = [],  # noqa: B006  typer reads it, nothing writes it
    seed: options.InputSeedOption = 0,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Compare two libraries subgraph by subgraph: by their records, or by timing each kernel.

    Without --time, nothing is loaded: the records that both were built from are compared. With it,
    both run in turns, and the kernels are sorted by the time that the newer library loses with
    each. Exit status 4 if a run of it is slower, 5 if the machine is too noisy to tell.

    Examples:
        tuner libraries compare old.lib new.lib
        tuner libraries compare old.lib new.lib --time
        tuner libraries compare before.json model.lib --time
    """
    from tuner.errors import RequestError

    if not time:
        timing = {"--max-slowdown": max_slowdown, "--runs": runs, "--inputs": arrays}
        if useless := [name for name, value in timing.items() if value is not None]:
            raise RequestError(f"{useless[0]} needs --time")
        _compare_records(library, other, json_output=json_output)
        return
    from tuner import local
    from tuner.cli.rendering.kernel_changes import show_changes
    from tuner.compile.bench.gate import MIN_TURNS
    from tuner.jobs.requests import parse_inputs
    from tuner.profiling.kernel_changes import changes_as_json
    from tuner.profiling.library_profile import RUNS_IN_TURN, ProfileRequest

    runs = 80 if runs is None else runs
    if runs < MIN_TURNS * RUNS_IN_TURN:
        raise RequestError(f"--runs must be at least {MIN_TURNS * RUNS_IN_TURN}, got {runs}")
    request = ProfileRequest(
        shapes=parse_inputs(shapes), arrays=arrays, n_runs=runs, seed=seed, nodes=False
    )
    limit = options.share("--max-slowdown", max_slowdown or "3%")
    changes = local.compare_kernels(
        library, other, request, limit, {"database": database, "data_dir": data_dir}
    )
    if json_output:
        print_json(changes_as_json(changes))
    else:
        show_changes(changes, str(library), str(other))
    if changes.exit_code:
        raise typer.Exit(changes.exit_code)


def _compare_records(library: Path, other: Path, *, json_output: bool) -> None:
    """Compare two libraries by their manifests."""
    from dataclasses import asdict

    from tuner.cli.console import stdout_console
    from tuner.cli.rendering.tables import comparison_table
    from tuner.formatting import milliseconds
    from tuner.library import manifest
    from tuner.profiling.kernel_changes import differing
    from tuner.queries.comparison import compare_libraries

    a, b = manifest.read(library), manifest.read(other)
    tasks = compare_libraries(a, b)
    differs = differing(
        *({"target": each.target, **each.device, **each.compiler} for each in (a, b))
    )
    if json_output:
        sides = {
            letter: {
                "library": str(folder),
                "model": each.model_name,
                "estimated_secs": each.estimated_secs,
                "fallbacks": each.n_fallbacks,
            }
            for letter, folder, each in (("a", library, a), ("b", other, b))
        }
        print_json({**sides, "differs": differs, "tasks": [asdict(task) for task in tasks]})
        return
    title = f"A: {library}, {a.model_name}. B: {other}, {b.model_name}."
    stdout_console().print(comparison_table(tasks, title))
    for name, (then, now) in differs.items():
        print_line(f"{name}: {then} in A, {now} in B")
    estimates = [milliseconds(each.estimated_secs) for each in (a, b)]
    print_line(f"Estimated by the records: {estimates[0]} ms in A, {estimates[1]} ms in B.")
    timed = hints.command("libraries compare", str(library), str(other), "--time", options={})
    print_note(f"`{timed}` times each kernel of both in turns")
