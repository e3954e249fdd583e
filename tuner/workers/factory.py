"""Factory of the pools of this machine: builders, compilers, processes for whole networks.

A whole network is loaded only in a process that ends with its work, so that no long-lived worker
keeps a network's weights in memory. Each process has a limit on its memory, see
:mod:`tuner.workers.memory`.
"""

import os
from collections.abc import Mapping
from dataclasses import replace

from tuner.settings import Settings
from tuner.workers.memory import data_limit, memory_limits
from tuner.workers.pool import Pool, WorkerSettings
from tuner.workers.split_env_pool import SplitEnvPool


def builder_pool(settings: Settings, n_workers: int) -> Pool:
    """Start processes that search, build and train, each on one core."""
    limit = memory_limits(settings).builder
    return _pool(settings, n_workers, "builder", n_threads=1, max_bytes=limit)


def compiler_pool(settings: Settings, n_workers: int) -> Pool:
    """Start processes that compile subgraphs, each on one core."""
    limit = memory_limits(settings).builder
    return _pool(settings, n_workers, "compiler", n_threads=1, max_bytes=limit)


def runner_pool(settings: Settings, environ: Mapping[str, str] | None = None) -> Pool:
    """Start the process that runs the candidates of one device; see :func:`fresh_worker`."""
    limit = memory_limits(settings).runner
    return fresh_worker(settings, "runner", max_bytes=limit, environ=environ)


def fresh_worker(
    settings: Settings,
    name: str = "network",
    *,
    max_bytes: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Pool:
    """Start one process that may use every core, to load or compile a network or to run it.

    For an engine with an environment of its own, a second process serves the calls that are not
    the engine's; each of the two starts with its first call.

    Args:
        settings: Engine and data directory.
        name: Name of the log file, without its suffix.
        max_bytes: Memory that each process may use for data; None for that of a process with a
            whole network.
        environ: More environment variables.
    """
    n_threads = len(os.sched_getaffinity(0))
    max_bytes = memory_limits(settings).network if max_bytes is None else max_bytes
    return _pool(settings, 1, name, n_threads=n_threads, max_bytes=max_bytes, environ=environ)


def _pool(
    settings: Settings,
    n_workers: int,
    name: str,
    *,
    n_threads: int,
    max_bytes: int,
    environ: Mapping[str, str] | None = None,
) -> Pool:
    threads = {"TVM_NUM_THREADS": str(n_threads), "OMP_NUM_THREADS": str(n_threads)}
    engine = WorkerSettings(
        n_workers=n_workers,
        log=settings.data_dir / "logs" / f"{name}.log",
        environ={**threads, **(environ or {})},
        max_bytes=data_limit(max_bytes, n_threads),
        interpreter=settings.interpreter,
        max_log_bytes=settings.retention.log_max_size,
    )
    if engine.interpreter is None:
        return Pool(engine)
    return SplitEnvPool(engine, replace(engine, interpreter=None))
