"""``tuner inspect``: show what a library is."""

from tuner.cli import options
from tuner.cli.console import print_json


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
