"""A device of this machine, timed by one process that does nothing else.

Threads that a search or a training left behind would slow down what is timed in their process,
so that builders never time and the runner never searches.
"""

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from tuner import inventory
from tuner.config import Settings
from tuner.executors.base import Call
from tuner.executors.future_call import FutureCall
from tuner.executors.meter import Meter
from tuner.executors.pool import Pool, PoolCall
from tuner.workers import fresh_worker

if TYPE_CHECKING:
    from tuner.engines.base import TargetInfo

_DESCRIBE_TIMEOUT_SECS = 300.0


class LocalRunner:
    """One process that owns a device.

    Args:
        settings: Name the engine.
        name: Of the device.
        shares_cores: Whether the device is this machine's CPU.
        kind: Of the targets that are measured on it; None: whatever its process runs.
        meter: Told when it works; its own by default.
        environ: Environment variables that show the process its device and no other.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        shares_cores: bool,
        kind: str | None = None,
        meter: Meter | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.shares_cores = shares_cores
        self.meter = meter or Meter()
        self.pool: Pool = fresh_worker(settings, "runner", environ=environ)
        self._engine = settings.engine
        self._kind = kind

    def describe(self, spec: str) -> Call:
        """See :class:`tuner.runners.base.Runner`."""
        if self._kind is None:
            asked: tuple[str, ...] = (self._engine, "describe_target", spec)
            return self.pool.submit(*asked, timeout_secs=_DESCRIBE_TIMEOUT_SECS)
        refused = inventory.refusal(self._kind, spec)
        if refused is not None:
            # No process is started to say no.
            answer: Future[TargetInfo] = Future()
            answer.set_result(refused)
            return FutureCall(answer)
        asked = (inventory.__name__, "describe", self._engine, self._kind, spec)
        return self.pool.submit(*asked, timeout_secs=_DESCRIBE_TIMEOUT_SECS)

    def measure(self, function: str, *args: Any, timeout_secs: float) -> PoolCall:
        """See :class:`tuner.runners.base.Runner`."""
        call = self.pool.submit(self._engine, function, *args, timeout_secs=timeout_secs)
        return self.meter.watch(call)

    def close(self) -> None:
        """Kill the process."""
        self.pool.close()
