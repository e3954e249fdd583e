"""``tuner worker``: tune and build for the service on this machine."""

import logging
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from tuner.cli import options
from tuner.cli.options import flag, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.settings import SettingOverrides

WORKER_PANEL = "Worker"
REMOTE_PANEL = "Devices of a service elsewhere"
LOG_PANEL = "Logs"

LoadMemoryOption = Annotated[
    int | None,
    option(
        "MIB",
        "Memory for loading or compiling a model, MiB [default: half of the worker's].",
        "--load-memory-mb",
        panel=WORKER_PANEL,
        min=256,
    ),
]
LoadTimeoutOption = Annotated[
    float,
    option(
        "SECONDS",
        "Time limit of each step of loading a model, seconds.",
        "--load-timeout",
        panel=WORKER_PANEL,
        min=1.0,
    ),
]
LogLevelOption = Annotated[
    str | None,
    option(
        "LEVEL",
        "Least severe level to log: debug, info, warning or error [default: info]. Also "
        "TUNER_LOG_LEVEL.",
        panel=LOG_PANEL,
    ),
]
LogFormatOption = Annotated[
    str | None,
    option(
        "FORMAT",
        "Format of log lines: json or text [default: text on a terminal, json elsewhere]. "
        "Also TUNER_LOG_FORMAT.",
        panel=LOG_PANEL,
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
    server: Annotated[
        str | None,
        option(
            "URL",
            "Measure for the service at this URL, which tunes and builds elsewhere.",
            panel=REMOTE_PANEL,
        ),
    ] = None,
    token: Annotated[
        str | None,
        option(
            "TOKEN",
            "API token with the scope measure, or build. Prefer the variable TUNER_TOKEN: "
            "other users of this machine can see command lines.",
            panel=REMOTE_PANEL,
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        option(
            "DEVICE",
            "Measure on this device only, cpu or gpu0 for example; repeat for several "
            "[default: all GPUs, or the CPU without any].",
            panel=REMOTE_PANEL,
        ),
    ] = None,
    build: Annotated[
        bool,
        flag(
            "--build",
            "Build candidates instead of measuring, on as many cores as TUNER_N_BUILDERS "
            "says; with --device gpu0, do both.",
            panel=REMOTE_PANEL,
        ),
    ] = False,
    name: Annotated[
        str | None,
        option(
            "NAME",
            "Name of this machine at the service [default: its host name].",
            panel=REMOTE_PANEL,
        ),
    ] = None,
) -> None:
    """Tune and build the jobs of the service on this machine.

    One worker per database is active. Others are on standby, and one takes over within seconds if
    the active one dies. Ctrl-C or SIGTERM returns the jobs to the queue. Logs go to stderr.

    Measures on the CPU and GPUs of this machine, or on the devices of a TVM RPC tracker; see
    docs/fleet.md. With --server, it only measures or builds, for a service elsewhere.

    Examples:
        tuner worker --database postgresql://localhost/tuner
        tuner worker --rpc tracker.local:9190/rasp4b
        tuner worker --server https://tuner.example.com --device gpu0
        tuner worker --server https://tuner.example.com --build
    """
    from tuner.context import open_context
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible
    from tuner.service import logs
    from tuner.service.loading.limited_loading import ProcessLimits
    from tuner.service.worker import check_worker, run_worker
    from tuner.settings import read_settings
    from tuner.workers.confinement.memory import memory_limits

    settings = read_settings({"log_level": log_level, "log_format": log_format})
    logs.set_up(settings.log_level, settings.log_format)
    if server is not None:
        given = {"--database": database, "--rpc": rpc}
        overrides: SettingOverrides = {"data_dir": data_dir, "engine": engine}
        _serve_for(server, token, (device, build), name, given, overrides)
        return
    if token or device or name or build:
        raise RequestError("--token, --device, --build and --name belong to --server")
    with (
        interruptible(only_waiting=True),
        open_context(database, data_dir, rpc=rpc, engine=engine) as opened,
    ):
        context = replace(opened, settings=check_worker(opened.settings))
        default = memory_limits(context.settings).load
        max_bytes = default if load_memory_mb is None else load_memory_mb << 20
        run_worker(context, ProcessLimits(max_bytes, load_timeout))


def _serve_for(
    server: str,
    token: str | None,
    work: tuple[list[str] | None, bool],
    host: str | None,
    given: "Mapping[str, object]",
    overrides: "SettingOverrides",
) -> None:
    """Measure on devices of this machine, or build, for a service elsewhere."""
    import socket
    from functools import partial

    from tuner.client.transport import Transport
    from tuner.devices.inventory import CPU, usable_devices
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible
    from tuner.service.remote_worker import REQUEST_TIMEOUT_SECS, run_remote_workers
    from tuner.settings import read_settings

    for name, value in given.items():
        if value is not None:
            raise RequestError(f"{name} is a setting of the service at {server}; leave it out")
    if host is not None and not re.fullmatch(r"[^/@\s]{1,100}", host):
        raise RequestError(
            f"--name must have at most 100 characters, without spaces, '/' and '@', got {host!r}"
        )
    settings = read_settings(overrides)
    if settings.worker_sandbox == "auto":
        settings = replace(settings, worker_sandbox="required")
    # It has a line for every request.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    names, builds = work
    present = {device.name: device for device in usable_devices()}
    for missing in [each for each in names or () if each not in present]:
        raise RequestError(f"no device {missing}; this machine has {', '.join(present)}")
    default = [] if builds else [each for each in present if each != CPU] or [CPU]
    chosen = names or default
    if builds and CPU in chosen:
        raise RequestError("a CPU that builds cannot measure: leave out --build or --device cpu")
    connect = partial(
        Transport, server, token or os.environ.get("TUNER_TOKEN"), REQUEST_TIMEOUT_SECS
    )
    with interruptible(only_waiting=True):
        run_remote_workers(
            connect,
            settings,
            [present[each] for each in chosen],
            host or socket.gethostname(),
            builds=builds,
        )
