"""The worker processes of one coordinator, by the part they play.

Builders search, build and train; the runner times and does nothing else, because
threads that a search or a training left behind would slow down what is timed in
their process. Whatever loads a whole network runs in a process of its own that
ends with it, so that no lasting worker holds a network's weights.
"""

import os
from types import TracebackType
from typing import Any, Self

from tuner.config import Settings
from tuner.executors.local import Call, Pool, WorkerSettings
from tuner.executors.meter import Meter

_TRAINING_MODULE = "tuner.cost_models.training"


class Workers:
    """Builders and one runner for one engine; ``meter`` is told how long they work."""

    def __init__(self, settings: Settings, meter: Meter | None = None) -> None:
        self._settings = settings
        self._meter = meter or Meter()
        self.builders = _pool(settings, settings.n_builders, "builder", n_threads=1)
        self.runner = fresh_worker(settings, "runner")

    def warm_up(self) -> list[Call]:
        """Start the processes and their imports; returns at once."""
        pools = [self.builders] * self.builders.n_workers + [self.runner]
        return [pool.submit(self._settings.engine, "describe_target", "llvm") for pool in pools]

    def submit(self, function: str, *args: Any, timeout_secs: float) -> Call:
        """Call a function of the engine in a builder."""
        return self._submit(
            self.builders, self._settings.engine, function, *args, timeout_secs=timeout_secs
        )

    def train(self, *args: Any, timeout_secs: float) -> Any:
        """Train a cost model in a builder; see :func:`tuner.cost_models.training.train`."""
        return self._submit(
            self.builders, _TRAINING_MODULE, "train", *args, timeout_secs=timeout_secs
        ).result()

    def measure(self, function: str, *args: Any, timeout_secs: float) -> Any:
        """Call a function of the engine in the runner and wait."""
        return self._submit(
            self.runner, self._settings.engine, function, *args, timeout_secs=timeout_secs
        ).result()

    def _submit(
        self, pool: Pool, module: str, function: str, *args: Any, timeout_secs: float
    ) -> Call:
        call = pool.submit(module, function, *args, timeout_secs=timeout_secs)
        self._meter.begin()
        call.future.add_done_callback(lambda _: self._meter.end())
        return call

    def close(self) -> None:
        """Kill all workers."""
        self.builders.close()
        self.runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def compilers(settings: Settings, n_workers: int) -> Pool:
    """Start processes that compile subgraphs, each on one core."""
    return _pool(settings, n_workers, "compiler", n_threads=1)


def fresh_worker(
    settings: Settings, name: str = "network", *, max_bytes: int | None = None
) -> Pool:
    """Start one process that may use every core: to load, compile or time a whole network."""
    n_threads = len(os.sched_getaffinity(0))
    return _pool(settings, 1, name, n_threads=n_threads, max_bytes=max_bytes)


def _pool(
    settings: Settings,
    n_workers: int,
    name: str,
    *,
    n_threads: int,
    max_bytes: int | None = None,
) -> Pool:
    environ = {"TVM_NUM_THREADS": str(n_threads), "OMP_NUM_THREADS": str(n_threads)}
    log = settings.data_dir / "logs" / f"{name}.log"
    return Pool(WorkerSettings(n_workers=n_workers, log=log, environ=environ, max_bytes=max_bytes))
