"""``tuner doctor``: check this machine, or a server, and print a fix for what is missing."""

from typing import TYPE_CHECKING

from tuner.cli import connection, options
from tuner.cli.console import print_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console

    from tuner.cli.doctor.check import Check

_STYLES = {"ok": "green", "warning": "yellow", "missing": "red"}
_NAME_WIDTH = 15


def doctor(
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Check this machine: versions, target, compilers, database, data directory, memory.

    Prints each check as ok, warning or missing, with a fix; changes nothing. With --server, checks
    the server instead: its database, workers and clock, and what the token allows. Exit status 1
    if something is missing without which tuning cannot work.

    Examples:
        tuner doctor
        tuner --server http://tuner.example:8080 doctor
    """
    from rich.console import Console

    from tuner.errors import WorkError

    console = Console(soft_wrap=True)
    checks = []
    for check in _checks(database, data_dir):
        checks.append(check)
        if not json_output:
            _report(console, check)
    fatal = [check.name for check in checks if check.fatal]
    if json_output:
        print_json({"ok": not fatal, "checks": [check.as_json() for check in checks]})
    if fatal:
        raise WorkError(f"tuning cannot work here; missing: {', '.join(fatal)}")
    if not json_output:
        console.print("Nothing essential is missing.", highlight=False)


def _checks(database: str | None, data_dir: "Path | None") -> "Iterator[Check]":
    if connection.chosen() is None:
        from tuner.cli.doctor.run import run_checks
        from tuner.settings import read_settings

        yield from run_checks(read_settings({"database": database, "data_dir": data_dir}))
        return
    from tuner.cli.remote import checks

    with connection.connect({"database": database, "data_dir": data_dir}) as client:
        yield from checks.run_checks(client)


def _report(console: "Console", check: "Check") -> None:
    from rich.text import Text

    optional = check.state == "missing" and not check.essential
    style = "dim" if optional else _STYLES[check.state]
    line = Text.assemble(
        (f"{check.state:<8}", style), f" {check.name:<{_NAME_WIDTH}} ", check.result
    )
    console.print(line)
    if check.fix:
        console.print(Text(f"{'':<8} {'':<{_NAME_WIDTH}} -> {check.fix}", "dim"))
