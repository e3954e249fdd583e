"""``tuner serve``: the REST API, the dashboard, and a worker, on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import options
from tuner.cli.commands.worker import LoadMemoryOption, LoadTimeoutOption


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond loopback, tokens are asked for.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 finds a free one.")
    ] = 8080,
    api_only: Annotated[
        bool, typer.Option("--api-only", help="No worker: tuner worker measures elsewhere.")
    ] = False,
    max_upload_mb: Annotated[
        float | None,
        typer.Option(metavar="MIB", help="Largest model [default: 512].", show_default=False),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Requests a second of one client; 0: no limit [default: a limit beyond loopback].",
            show_default=False,
        ),
    ] = None,
    require_tokens: Annotated[
        bool, typer.Option("--require-tokens", help="Ask for tokens on loopback too.")
    ] = False,
    load_memory_mb: LoadMemoryOption = None,
    load_timeout: LoadTimeoutOption = 600.0,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
) -> None:
    """Serve the REST API and the dashboard, and tune what they are asked for.

    Both processes are started again if they die, and end with this one. Logs go to stderr as JSON
    lines.

    Examples:
        tuner serve

        tuner serve --host 0.0.0.0 --port 80 --api-only --database postgresql://db/tuner
    """
    from tuner.cli.console import print_line
    from tuner.context import open_context
    from tuner.interrupts import interruptible
    from tuner.service import logs
    from tuner.service.supervisor import Serving, free_port, supervise

    logs.set_up()
    # Once here: a database that cannot be used is said in one line, and migrated by one process.
    with open_context(database, data_dir, engine=engine) as context:
        # And so is an engine that is not installed.
        context.settings.check_engine()
    shared = list(_given(("--database", database), ("--data-dir", data_dir)))
    serving = Serving(
        host,
        port or free_port(host),
        [
            *shared,
            *_given(("--max-upload-mb", max_upload_mb), ("--rate", rate)),
            *(["--require-tokens"] if require_tokens else []),
        ],
        None
        if api_only
        else [
            *shared,
            *_given(("--engine", engine)),
            *_given(("--load-memory-mb", load_memory_mb), ("--load-timeout", load_timeout)),
        ],
    )
    with interruptible(only_waiting=True):
        supervise(serving, print_line)


def _given(*pairs: tuple[str, str | float | Path | None]) -> Iterator[str]:
    """Spell options that were given."""
    for name, value in pairs:
        if value is not None:
            yield from (name, str(value))
