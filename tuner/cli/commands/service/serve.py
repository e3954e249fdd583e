"""``tuner serve``: run the REST API, the dashboard and a worker."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from tuner.cli import options
from tuner.cli.commands.service.worker import (
    WORKER_PANEL,
    LoadMemoryOption,
    LoadTimeoutOption,
    LogFormatOption,
    LogLevelOption,
)
from tuner.cli.console import print_line
from tuner.cli.options import flag, option

_NETWORK_PANEL = "Network"


def serve(
    host: Annotated[
        str,
        option(
            "ADDRESS",
            "Listen on this address; beyond loopback, tokens are required.",
            panel=_NETWORK_PANEL,
            envvar="TUNER_HOST",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        option(
            "PORT",
            "Listen on this port; 0 chooses a free one.",
            panel=_NETWORK_PANEL,
            envvar="TUNER_PORT",
            min=0,
            max=65535,
        ),
    ] = 8080,
    max_upload_mb: Annotated[
        float | None,
        option("MIB", "Maximum size of a model, MiB [default: 512].", panel=_NETWORK_PANEL),
    ] = None,
    rate: Annotated[
        float | None,
        option(
            "N",
            "Limit each client to N requests per second; 0 sets no limit [default: none on "
            "loopback, 100 beyond it].",
            panel=_NETWORK_PANEL,
        ),
    ] = None,
    require_tokens: Annotated[
        bool, flag("--require-tokens", "Require tokens on loopback, too.", panel=_NETWORK_PANEL)
    ] = False,
    quotas: Annotated[
        str | None,
        option(
            "NAME=N,...",
            "Quotas of each token without its own: jobs, trials, seconds, upload_mb, disk_mb "
            "[default: none on loopback, jobs=100,upload_mb=20480,disk_mb=51200 beyond it].",
            panel=_NETWORK_PANEL,
        ),
    ] = None,
    max_priority: Annotated[
        int | None,
        option(
            "N",
            "Highest priority that a token may set without the scope admin [default: 3].",
            panel=_NETWORK_PANEL,
            min=0,
            max=100,
        ),
    ] = None,
    trusted_proxies: Annotated[
        str | None,
        option(
            "ADDRESS,...",
            "Believe the X-Forwarded-For and X-Forwarded-Proto of these proxies, addresses or "
            "networks; requires tokens.",
            panel=_NETWORK_PANEL,
        ),
    ] = None,
    max_connections: Annotated[
        int | None,
        option(
            "N",
            "Maximum of connections; beyond them only probes are answered [default: 4096].",
            panel=_NETWORK_PANEL,
            min=1,
        ),
    ] = None,
    api_only: Annotated[
        bool,
        flag(
            "--api-only",
            "Start no worker; run `tuner worker` on another machine.",
            panel=WORKER_PANEL,
        ),
    ] = False,
    load_memory_mb: LoadMemoryOption = None,
    load_timeout: LoadTimeoutOption = 600.0,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
) -> None:
    """Serve the REST API and the dashboard, and run a worker that tunes and builds.

    Both processes are restarted if they die, and end with this one. Logs go to stderr.

    Examples:
        tuner serve
        tuner serve --host 0.0.0.0 --port 80 --api-only --database postgresql://db/tuner
    """
    from tuner.context import open_context
    from tuner.errors import RequestError, install_command
    from tuner.interrupts import interruptible
    from tuner.service import logs
    from tuner.service.supervisor import Serving, free_port, supervise
    from tuner.service.worker import check_worker
    from tuner.settings import read_settings

    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise RequestError(f"serving needs the extra serve: {install_command('serve')}")
    settings = read_settings({"log_level": log_level, "log_format": log_format})
    logs.set_up(settings.log_level, settings.log_format)
    # Opened once here: an unusable database is one line, and one process migrates the schema.
    with open_context(database, data_dir, engine=engine) as context:
        if not api_only:
            check_worker(context.settings)
    shared = [
        *_flags(("--database", database), ("--data-dir", data_dir)),
        *_flags(("--log-level", log_level), ("--log-format", log_format)),
    ]
    serving = Serving(
        host,
        port or free_port(host),
        [
            *shared,
            *_flags(("--max-upload-mb", max_upload_mb), ("--rate", rate)),
            *_flags(("--quotas", quotas), ("--max-priority", max_priority)),
            *_flags(("--trusted-proxies", trusted_proxies), ("--max-connections", max_connections)),
            *(["--require-tokens"] if require_tokens else []),
        ],
        None
        if api_only
        else [
            *shared,
            *_flags(("--engine", engine)),
            *_flags(("--load-memory-mb", load_memory_mb), ("--load-timeout", load_timeout)),
        ],
    )
    with interruptible(only_waiting=True):
        supervise(serving, print_line)


def _flags(*pairs: tuple[str, str | float | Path | None]) -> Iterator[str]:
    """Return the options that have a value as command-line arguments."""
    for name, value in pairs:
        if value is not None:
            yield from (name, str(value))
