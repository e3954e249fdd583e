"""Workers in the environment of an engine, and workers of ours for what is no engine's."""

from typing import Any

from tuner.workers.pool import Pool, PoolCall, WorkerSettings

# Reads models, and runs them by the runtimes that they came for.
_OURS = ("tuner.networks.", "tuner.peers.", "tuner.jit.")


class SplitEnvPool(Pool):
    """A pool whose calls go to one of two environments, by their module.

    Args:
        engines: Of the workers for an engine and for cost models, which it asks.
        ours: Of the workers for everything else; they start with the first such call.
    """

    def __init__(self, engines: WorkerSettings, ours: WorkerSettings) -> None:
        super().__init__(engines)
        self._ours = Pool(ours)

    def submit(
        self, module: str, function: str, *args: Any, timeout_secs: float | None = None
    ) -> PoolCall:
        """See :meth:`Pool.submit`."""
        if module.startswith(_OURS):
            return self._ours.submit(module, function, *args, timeout_secs=timeout_secs)
        return super().submit(module, function, *args, timeout_secs=timeout_secs)

    def close(self) -> None:
        """Kill the workers of both; calls in flight are lost."""
        self._ours.close()
        super().close()
