"""A pool of workers in two environments: the engine's own, and the tuner's for all other calls."""

from typing import Any

from tuner.workers.future_call import FutureCall
from tuner.workers.pool import MAX_CALL_SECS, Pool, WorkerSettings

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
