"""``tuner engine``: list the engines and install the environment that one needs."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import options
from tuner.cli.console import print_json
from tuner.cli.options import argument, option

app = typer.Typer(help="List the engines and install their environments.", no_args_is_help=True)


@app.command("ls")
def ls(data_dir: options.DataDirOption = None, json_output: options.JsonOption = False) -> None:
    """List the engines: name, state, and the Python that runs each.

    Example:
        tuner engine ls
    """
    import sys

    from tuner.engines import environments
    from tuner.settings import read_settings

    relay = environments.Environment(
        environments.RELAY, read_settings({"data_dir": data_dir}).relay_python
    )
    rows = [
        {"name": environments.RELAX, "state": "ready", "python": sys.executable},
        {"name": relay.name, "state": relay.state, "python": str(relay.python)},
    ]
    if json_output:
        print_json({"engines": rows})
        return
    for row in rows:
        print(f"{row['name']:<8}{row['state']:<10}{row['python']}")


@app.command("install")
def install(
    name: Annotated[str, argument("NAME", "Name of the engine: relay.")],
    into: Annotated[
        Path | None,
        option(
            "DIR",
            "Create the environment here [default: in the data directory]; then set "
            "TUNER_RELAY_PYTHON to its bin/python.",
        ),
    ] = None,
    python: Annotated[
        str | None,
        option("PATH", "Python 3.11 of the environment [default: this Python, or python3.11]."),
    ] = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Create the environment of an engine; download 140 MB, use 750 MB on disk.

    An existing environment is replaced.

    Example:
        tuner engine install relay
    """
    from tuner.engines import environments, installing
    from tuner.errors import RequestError
    from tuner.settings import read_settings

    if name not in environments.SEPARATE_ENVIRONMENTS:
        names = ", ".join(environments.SEPARATE_ENVIRONMENTS)
        raise RequestError(
            f"the engine {name!r} has no environment of its own; {names} can be installed"
        )
    settings = read_settings({"data_dir": data_dir})
    path = environments.default_python(settings.data_dir, name)
    if into is not None:
        path = environments.Environment.within(into.absolute(), name).python
    environment = environments.Environment(name, path)
    installing.install(environment, python)
    if json_output:
        print_json({"name": name, "state": environment.state, "python": str(path)})
    else:
        print(f"The engine {name} is installed: {path}")
