"""``tuner bisect``: find the kernels that a new library, driver or compiler made slower."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import options
from tuner.cli.console import print_json
from tuner.cli.options import argument, option


def bisect(
    old: Annotated[
        Path,
        argument(
            "OLD", "Folder of the older library, or a file that 'tuner profile --json' wrote."
        ),
    ],
    new: Annotated[Path, argument("NEW", "Folder of the newer library.")],
    max_slowdown: Annotated[
        str, option("SHARE", "Largest increase of a time that does not count.", panel="Limits")
    ] = "3%",
    arrays: options.ArraysOption = None,
    shapes: options.ProgramShapesOption = [],
    runs: Annotated[
        int,
        option("N", "Number of profiled runs of each, at least 40.", panel=options.MEASURING_PANEL),
    ] = 80,
    seed: options.InputSeedOption = 0,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Find the kernels that a new library, driver, compiler or tuner made slower.

    Times each kernel of both libraries in turns on this machine, and sorts the kernels by the time
    that the newer library loses with each. Exit status 4 if a run of it is slower, 5 if the machine
    is too noisy to tell; see docs/ci.md.

    Examples:
        tuner bisect old.lib new.lib
        tuner bisect before.json model.lib
    """
    from tuner.cli.rendering.kernel_changes import show_changes
    from tuner.compile.bench.bench_model import Called
    from tuner.compile.bench.gate import MIN_TURNS
    from tuner.context import open_context
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible
    from tuner.jobs.requests import parse_inputs
    from tuner.profiling import kernel_changes
    from tuner.profiling.library_profile import RUNS_IN_TURN, ProfileRequest, profile_in_turns

    if runs < MIN_TURNS * RUNS_IN_TURN:
        raise RequestError(f"--runs must be at least {MIN_TURNS * RUNS_IN_TURN}, got {runs}")
    request = ProfileRequest(
        shapes=parse_inputs(shapes), arrays=arrays, n_runs=runs, seed=seed, nodes=False
    )
    limit = options.share("--max-slowdown", max_slowdown)
    with interruptible(only_waiting=True), open_context(database, data_dir) as context:
        if not old.is_file():
            a, b = profile_in_turns(context, [old, new], request)
        else:
            a = kernel_changes.read_profile(old)
            (b,) = profile_in_turns(context, [new], request, Called(old, a.target, a.inputs))
    changes = kernel_changes.find_changes(a, b, limit)
    if json_output:
        print_json(kernel_changes.changes_as_json(changes))
    else:
        show_changes(changes, str(old), str(new))
    if changes.exit_code:
        raise typer.Exit(changes.exit_code)
