"""``tuner settings``: show the settings and where each of them comes from."""

from typing import Any

from tuner.cli import options
from tuner.cli.console import print_json, print_line, stdout_console


def settings(
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
    rpc: options.RpcOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Show the settings of commands and workers, and the flag, variable or file of each.

    Times are in seconds, sizes in bytes. Other TUNER_* variables, such as those of the API, are
    shown if they are set; secrets are not.

    Example:
        tuner settings
    """
    import os

    from records.database import redact
    from tuner.cli.rendering.grid import Column, Grid
    from tuner.formatting import DASH
    from tuner.settings import config_file, explain_settings

    flags: dict[str, Any] = {
        "database": database,
        "data_dir": data_dir,
        "engine": engine,
        "rpc": rpc,
    }
    explained = explain_settings(flags)

    def shown(value: Any) -> Any:
        """Return a value as JSON, without the passwords of URLs."""
        if value is None or isinstance(value, (bool, int, float, list)):
            return value
        text = str(value)
        return redact(text) if "://" in text else text

    path = config_file(os.environ)
    rows = [
        {"name": each.name, "value": shown(each.value), "source": each.source} for each in explained
    ]
    if json_output:
        print_json({"file": str(path), "exists": path.is_file(), "settings": rows})
        return
    table = Grid(Column("Setting"), Column("Value", "prose"), Column("From", "name"))
    for row in rows:
        value = row["value"]
        text = ", ".join(value) if isinstance(value, list) else str(value)
        table.add(row["name"], DASH if value in (None, []) else text, row["source"])
    stdout_console().print(table)
    print_line(f"config file: {path}{'' if path.is_file() else ', which does not exist'}")
