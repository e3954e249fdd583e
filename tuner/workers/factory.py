"""Factory of the pools of this machine: builders, compilers, processes for whole networks.

A whole network is loaded only in a process that ends with its work, so that no long-lived worker
keeps a network's weights in memory. Each process has a limit on its memory, see
:mod:`tuner.workers.memory`, and reaches only what its calls need, see
:mod:`tuner.workers.sandbox_paths`.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tuner.settings import Settings
from tuner.workers.memory import data_limit, memory_limits
from tuner.workers.pool import Pool, WorkerSettings
from tuner.workers.sandbox_paths import (
    Access,
    cache_scratch,
    make_folder,
    models_folder,
    references_folder,
    sandbox_of,
    scratch_folder,
)
from tuner.workers.split_env_pool import SplitEnvPool

_NO_ACCESS = Access()


def builder_pool(settings: Settings, n_workers: int) -> Pool:
    """Start processes that search, build and train, each on one core."""
    access = Access(writes=(scratch_folder(settings.data_dir),))
    return _one_core_pool(settings, n_workers, "builder", access)


def compiler_pool(settings: Settings, n_workers: int) -> Pool:
    """Start processes that compile subgraphs, each on one core."""
    return _one_core_pool(
        settings, n_workers, "compiler", Access(writes=(cache_scratch(settings),))
    )


def runner_pool(settings: Settings, environ: Mapping[str, str] | None = None) -> Pool:
    """Start the process that runs the candidates of one device; see :func:`fresh_worker`."""
    access = Access(files=_measured_files(settings))
    limit = memory_limits(settings).runner
    return _pool(settings, "runner", access, max_bytes=limit, environ=environ)


def client_pool(settings: Settings, port: int) -> Pool:
    """Start the process that has candidates run by a server of another machine, at a TCP port."""
    access = Access(files=_measured_files(settings), tcp_ports=(port,))
    return _pool(settings, "rpc", access, max_bytes=memory_limits(settings).network)


def fresh_worker(
    settings: Settings,
    name: str = "network",
    access: Access = _NO_ACCESS,
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
        access: Files that it may reach, beside cleaned models and temporary ones of the cache.
        max_bytes: Memory that each process may use for data; None for that of a process with a
            whole network.
        environ: More environment variables.
    """
    own = (models_folder(settings.data_dir), cache_scratch(settings))
    access = replace(access, writes=(*access.writes, *own))
    max_bytes = memory_limits(settings).network if max_bytes is None else max_bytes
    return _pool(settings, name, access, max_bytes=max_bytes, environ=environ)


def _measured_files(settings: Settings) -> tuple[Path, ...]:
    """Return the folders of artifacts and of the references that they are compared with."""
    folders = (scratch_folder(settings.data_dir), references_folder(settings.data_dir))
    for folder in folders:
        make_folder(folder)
    return folders


def _one_core_pool(settings: Settings, n_workers: int, name: str, access: Access) -> Pool:
    limit = memory_limits(settings).builder
    return _pool(settings, name, access, n_workers=n_workers, n_threads=1, max_bytes=limit)


def _pool(  # noqa: PLR0913  one place that starts pools
    settings: Settings,
    name: str,
    access: Access,
    *,
    max_bytes: int,
    n_workers: int = 1,
    n_threads: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Pool:
    n_threads = n_threads or len(os.sched_getaffinity(0))
    threads = {"TVM_NUM_THREADS": str(n_threads), "OMP_NUM_THREADS": str(n_threads)}
    engine = WorkerSettings(
        n_workers=n_workers,
        log=settings.data_dir / "logs" / f"{name}.log",
        environ={**threads, **(environ or {})},
        max_bytes=data_limit(max_bytes, n_threads),
        interpreter=settings.interpreter,
        max_log_bytes=settings.retention.log_max_size,
        sandbox=sandbox_of(settings, access, settings.interpreter),
    )
    if engine.interpreter is None:
        return Pool(engine)
    own = replace(engine, interpreter=None, sandbox=sandbox_of(settings, access, None))
    return SplitEnvPool(engine, own)
