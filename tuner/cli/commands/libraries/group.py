"""``tuner libraries``: compare libraries."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import hints, options
from tuner.cli.console import print_json, print_line, print_note
from tuner.cli.options import argument

app = typer.Typer(help="Compare libraries.", no_args_is_help=True)


@app.callback()
def libraries() -> None:
    """Compare libraries."""


@app.command("compare")
def compare(
    library: options.LibraryArgument,
    other: Annotated[Path, argument("OTHER", "Folder of another library.")],
    json_output: options.JsonOption = False,
) -> None:
    """Compare two libraries subgraph by subgraph, by the records that they were built from.

    Reads the manifests alone: nothing is loaded or timed, which is what tuner bisect does.

    Example:
        tuner libraries compare old.lib new.lib
    """
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
    timed = hints.command("bisect", str(library), str(other), options={})
    print_note(f"`{timed}` times each kernel of both in turns")


def inspect(library: options.LibraryArgument, json_output: options.JsonOption = False) -> None:
    """Show what a library is: its model, inputs and outputs, where it runs, what it was built from.

    Reads the manifest alone: nothing is loaded, so a library for another machine can be inspected.

    Examples:
        tuner inspect squeezenet.lib
        tuner inspect squeezenet.lib --json
    """
    from tuner.cli.rendering.library import library_as_json, show_library
    from tuner.library import manifest

    described = manifest.read(library)
    if json_output:
        print_json(library_as_json(library, described))
    else:
        show_library(library, described)
