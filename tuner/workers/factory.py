"""Factory of the pools of this machine: builders, compilers, processes for whole networks.

A whole network is loaded only in a process that ends with its work, so that no long-lived worker
keeps a network's weights in memory. Each process has a limit on its memory, see
:mod:`tuner.workers.confinement.memory`, and reaches only what its calls need, see
:mod:`tuner.workers.confinement.sandbox_paths`.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.settings import Settings
from tuner.workers.base import FutureCall
from tuner.workers.confinement.core_shares import cores_of
from tuner.workers.confinement.environment import MACHINE_CORES
from tuner.workers.confinement.memory import data_limit, memory_limits
from tuner.workers.confinement.sandbox_paths import (
    Access,
    make_folder,
    models_folder,
    new_exchange,
    references_folder,
    sandbox_of,
    scratch_folder,
)
from tuner.workers.pool import MAX_CALL_SECS, Pool, WorkerSettings

_NO_ACCESS = Access()

# Packages that read models, or run them by the runtimes that they come from.
_TUNER_PACKAGES = ("tuner.networks.", "tuner.peers.", "tuner.jit.")


class SplitEnvPool(Pool):
    """A pool that sends each call to one of two environments, by the module of its function.

    Args:
        engine: Settings of the workers for the engine and for cost models, which call it.
        tuner: Settings of the workers for everything else; they start with the first such call.
    """

    def __init__(self, engine: WorkerSettings, tuner: WorkerSettings) -> None:
        super().__init__(engine)
        self._tuner_pool = Pool(tuner)

    def submit(
        self,
        module: str,
        function: str,
        *args: Any,
        timeout_secs: float = MAX_CALL_SECS,
        returns: Any = ...,
    ) -> FutureCall:
        """Call a function in the environment that its module belongs to."""
        submit = super().submit
        if module.startswith(_TUNER_PACKAGES):
            submit = self._tuner_pool.submit
        return submit(module, function, *args, timeout_secs=timeout_secs, returns=returns)

    def close(self) -> None:
        """Kill the workers of both environments; calls in flight are lost."""
        self._tuner_pool.close()
        super().close()


def builder_pool(settings: Settings, n_workers: int) -> Pool:
    """Start processes that search, build and train, each on one core."""
    access = Access(writes=(scratch_folder(settings.data_dir),))
    return _one_core_pool(settings, n_workers, "builder", access)


def compiler_pool(settings: Settings) -> Pool:
    """Start a process that compiles subgraphs on one core, out of the reach of others that do."""
    return _one_core_pool(settings, 1, "compiler", _NO_ACCESS, has_exchange=True)


def runner_pool(settings: Settings, environ: Mapping[str, str] | None = None) -> Pool:
    """Start the process that runs the candidates of one device; see :func:`fresh_worker`."""
    access = Access(files=_measured_files(settings), pins_threads=True)
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
    share: float = 1.0,
) -> Pool:
    """Start one process that loads, compiles or runs a network, on every core by default.

    For an engine with an environment of its own, a second process serves the calls that are not
    the engine's; each of the two starts with its first call.

    Args:
        settings: Engine and data directory.
        name: Name of the log file, without its suffix.
        access: Files that it may reach, beside cleaned models and those of its calls.
        max_bytes: Memory that each process may use for data; None for that of a process with a
            whole network.
        environ: More environment variables.
        share: Part of the cores of this process that it may use, at least one.
    """
    models = models_folder(settings.data_dir)
    make_folder(models)
    access = replace(access, files=(*access.files, models))
    max_bytes = memory_limits(settings).network if max_bytes is None else max_bytes
    cores = cores_of(share)
    if cores:
        environ = {**(environ or {}), MACHINE_CORES: str(len(os.sched_getaffinity(0)))}
    return _pool(
        settings,
        name,
        access,
        max_bytes=max_bytes,
        n_threads=len(cores) or None,
        environ=environ,
        has_exchange=True,
        cores=cores,
    )


def _measured_files(settings: Settings) -> tuple[Path, ...]:
    """Return the folders of artifacts and of the references that they are compared with."""
    folders = (scratch_folder(settings.data_dir), references_folder(settings.data_dir))
    for folder in folders:
        make_folder(folder)
    return folders


def _one_core_pool(
    settings: Settings,
    n_workers: int,
    name: str,
    access: Access,
    *,
    has_exchange: bool = False,
) -> Pool:
    limit = memory_limits(settings).builder
    return _pool(
        settings,
        name,
        access,
        n_workers=n_workers,
        n_threads=1,
        max_bytes=limit,
        has_exchange=has_exchange,
    )


def _pool(  # noqa: PLR0913  one place that starts pools
    settings: Settings,
    name: str,
    access: Access,
    *,
    max_bytes: int,
    n_workers: int = 1,
    n_threads: int | None = None,
    environ: Mapping[str, str] | None = None,
    has_exchange: bool = False,
    cores: frozenset[int] = frozenset(),
) -> Pool:
    with ExitStack() as on_error:
        exchange = None
        if has_exchange:
            exchange = new_exchange(settings)
            on_error.callback(exchange.remove)
            access = replace(
                access,
                files=(*access.files, exchange.inputs),
                writes=(*access.writes, exchange.outputs),
            )
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
            exchange=exchange,
            cores=cores,
            packages=(settings.engine_package,),
        )
        if engine.interpreter is None:
            pool = Pool(engine)
        else:
            own = replace(engine, interpreter=None, sandbox=sandbox_of(settings, access, None))
            pool = SplitEnvPool(engine, own)
        on_error.pop_all()
    return pool
