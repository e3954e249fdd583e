"""``tuner worker``: measure for the service on this machine."""

from typing import Annotated

import typer

from tuner.cli import options

LoadMemoryOption = Annotated[
    int | None,
    typer.Option(
        "--load-memory-mb",
        metavar="MIB",
        min=256,
        help="Memory that loading or compiling a model may take [default: half of the machine's].",
        show_default=False,
    ),
]
LoadTimeoutOption = Annotated[
    float,
    typer.Option(
        "--load-timeout", min=1.0, help="Seconds that a step of loading a model may take."
    ),
]


def worker(
    load_memory_mb: LoadMemoryOption = None,
    load_timeout: LoadTimeoutOption = 600.0,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
    rpc: options.RpcOption = None,
    ray_address: options.RayAddressOption = None,
) -> None:
    """Tune and build what the service is asked for, on this machine.

    One worker at a time coordinates; others on the same database stand by, and one of them takes
    over within seconds if it dies. Logs go to stderr as JSON lines. Ctrl-C or SIGTERM puts the
    jobs back into the queue.

    It measures on this machine's CPU and GPUs, or else on the devices of a Ray cluster or behind
    a TVM RPC tracker: docs/fleet.md.

    Examples:
        tuner worker --database postgresql://localhost/tuner

        tuner worker --ray-address 10.0.0.5:6379

        tuner worker --rpc tracker.local:9190/rasp4b
    """
    from tuner.context import open_context
    from tuner.interrupts import interruptible
    from tuner.service import logs
    from tuner.service.loading import Limits, default_max_bytes
    from tuner.service.worker import run_worker

    logs.set_up()
    max_bytes = default_max_bytes() if load_memory_mb is None else load_memory_mb << 20
    with (
        interruptible(only_waiting=True),
        open_context(
            database, data_dir, rpc=rpc, ray_address=ray_address, engine=engine
        ) as context,
    ):
        run_worker(context, Limits(max_bytes, load_timeout))
