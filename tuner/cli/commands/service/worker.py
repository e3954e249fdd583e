"""``tuner worker``: tune and build for the service on this machine."""

from typing import Annotated

import typer

from tuner.cli import options

WORKER_PANEL = "Worker"
LOG_PANEL = "Logs"

LoadMemoryOption = Annotated[
    int | None,
    typer.Option(
        "--load-memory-mb",
        metavar="MIB",
        min=256,
        help="Memory for loading or compiling a model, MiB [default: half of the worker's].",
        show_default=False,
        rich_help_panel=WORKER_PANEL,
    ),
]
LoadTimeoutOption = Annotated[
    float,
    typer.Option(
        "--load-timeout",
        metavar="SECONDS",
        min=1.0,
        help="Time limit of each step of loading a model, seconds.",
        rich_help_panel=WORKER_PANEL,
    ),
]
LogLevelOption = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL",
        help="Least severe level to log: debug, info, warning or error [default: info]. Also "
        "TUNER_LOG_LEVEL.",
        show_default=False,
        rich_help_panel=LOG_PANEL,
    ),
]
LogFormatOption = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="Format of log lines: json or text [default: text on a terminal, json elsewhere]. "
        "Also TUNER_LOG_FORMAT.",
        show_default=False,
        rich_help_panel=LOG_PANEL,
    ),
]


def worker(
    load_memory_mb: LoadMemoryOption = None,
    load_timeout: LoadTimeoutOption = 600.0,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
    rpc: options.RpcOption = None,
    ray_address: options.RayAddressOption = None,
) -> None:
    """Tune and build the jobs of the service on this machine.

    One worker per database is active. Others are on standby, and one takes over within seconds if
    the active one dies. Ctrl-C or SIGTERM returns the jobs to the queue. Logs go to stderr.

    Measures on the CPU and GPUs of this machine, on a Ray cluster, or on the devices of a TVM RPC
    tracker; see docs/fleet.md.

    Examples:
        tuner worker --database postgresql://localhost/tuner
        tuner worker --ray-address 10.0.0.5:6379
        tuner worker --rpc tracker.local:9190/rasp4b
    """
    from dataclasses import replace

    from tuner.context import open_context
    from tuner.interrupts import interruptible
    from tuner.service import logs
    from tuner.service.loading.limited_loading import ProcessLimits
    from tuner.service.worker import check_worker, run_worker
    from tuner.settings import read_settings
    from tuner.workers.confinement.memory import memory_limits

    settings = read_settings({"log_level": log_level, "log_format": log_format})
    logs.set_up(settings.log_level, settings.log_format)
    with (
        interruptible(only_waiting=True),
        open_context(database, data_dir, rpc=rpc, ray_address=ray_address, engine=engine) as opened,
    ):
        context = replace(opened, settings=check_worker(opened.settings))
        default = memory_limits(context.settings).load
        max_bytes = default if load_memory_mb is None else load_memory_mb << 20
        run_worker(context, ProcessLimits(max_bytes, load_timeout))
