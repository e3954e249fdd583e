"""``tuner engine``: the engines, and the environments that some of them need."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import options
from tuner.cli.console import print_json

app = typer.Typer(
    help="List the engines, and install the environment that one needs.", no_args_is_help=True
)


@app.command("ls")
def ls(data_dir: options.DataDirOption = None, json_output: options.JsonOption = False) -> None:
    """List the engines: name, which Python runs it, and whether that is there.

    Example:
        tuner engine ls
    """
    from tuner.settings import read_settings

    rows = _rows(read_settings({"data_dir": data_dir}).relay_python)
    if json_output:
        print_json({"engines": rows})
        return
    for row in rows:
        print(f"{row['name']:<8}{row['state']:<10}{row['python']}")


@app.command("install")
def install(
    name: Annotated[str, typer.Argument(help="Of the engine: relay.", show_default=False)],
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where to make it [default: under the data directory]; TUNER_RELAY_PYTHON is to "
            "name its bin/python then.",
            show_default=False,
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Python to make it with: 3.11 [default: ours, or python3.11].",
            show_default=False,
        ),
    ] = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Make the environment of an engine: about 140 MB of wheels, and 750 MB on the disk.

    An environment that is there is made anew.

    Example:
        tuner engine install relay
    """
    from tuner.engines import environments, installing
    from tuner.errors import RequestError
    from tuner.settings import read_settings

    if name not in environments.SEPARATE_ENVIRONMENTS:
        apart = ", ".join(environments.SEPARATE_ENVIRONMENTS)
        raise RequestError(f"the engine {name!r} needs no environment of its own; {apart} does")
    settings = read_settings({"data_dir": data_dir})
    made = environments.default_python(settings.data_dir, name)
    if into is not None:
        made = environments.Environment.within(into.absolute(), name).python
    environment = environments.Environment(name, made)
    installing.install(environment, python)
    if json_output:
        print_json({"name": name, "state": environment.state, "python": str(made)})
    else:
        print(f"The engine {name} is installed: {made}")


def _rows(relay_python: Path) -> list[dict[str, str]]:
    import sys

    from tuner.engines import environments

    relay = environments.Environment(environments.RELAY, relay_python)
    return [
        {"name": environments.RELAX, "state": "ready", "python": sys.executable},
        {"name": relay.name, "state": relay.state, "python": str(relay.python)},
    ]
