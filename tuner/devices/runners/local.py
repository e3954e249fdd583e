"""A device of this machine, timed by one process that does nothing else.

Threads that a search or a training left behind would slow down what is timed in their process,
so that builders never time and the runner never searches.
"""

from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tuner.devices import inventory, target_matching
from tuner.devices.locks import gpu_lock
from tuner.errors import DeviceBusy
from tuner.settings import Settings
from tuner.workers.base import Call
from tuner.workers.future_call import FutureCall
from tuner.workers.pool import Pool, PoolCall
from tuner.workers.pools import fresh_worker
from tuner.workers.utilisation import UtilisationMeter

if TYPE_CHECKING:
    from tuner.engines.base import TargetInfo

_DESCRIBE_TIMEOUT_SECS = 300.0


class LocalRunner:
    """One process that owns a device.

    Args:
        settings: Name the engine.
        name: Of the device.
        shares_cores: Whether the device is this machine's CPU.
        seat: The device; a GPU is held from the first call until the runner is closed. None:
            whatever its process runs is measured.
        meter: Told when it works; its own by default.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        shares_cores: bool,
        seat: inventory.LocalDevice | None = None,
        meter: UtilisationMeter | None = None,
    ) -> None:
        self.name = name
        self.shares_cores = shares_cores
        self.meter = meter or UtilisationMeter()
        self.pool: Pool = seat.open(settings) if seat else fresh_worker(settings, "runner")
        self._engine = settings.engine
        self._seat = seat
        self._held: ExitStack | None = None

    def describe(self, spec: str) -> Call:
        """See :class:`tuner.devices.runners.base.Runner`."""
        if self._seat is None:
            asked: tuple[str, ...] = (self._engine, "describe_target", spec)
            return self.pool.submit(*asked, timeout_secs=_DESCRIBE_TIMEOUT_SECS)
        refused = target_matching.refusal(self._seat.kind, spec)
        if refused is not None:
            # No process is started to say no.
            answer: Future[TargetInfo] = Future()
            answer.set_result(refused)
            return FutureCall(answer)
        try:
            self._hold(self._seat)
        except DeviceBusy as error:
            busy: Future[TargetInfo] = Future()
            busy.set_exception(error)
            return FutureCall(busy)
        asked = (target_matching.__name__, "describe", self._engine, self._seat.kind, spec)
        return self.pool.submit(*asked, timeout_secs=_DESCRIBE_TIMEOUT_SECS)

    def measure(self, function: str, *args: Any, timeout_secs: float) -> PoolCall:
        """See :class:`tuner.devices.runners.base.Runner`."""
        call = self.pool.submit(self._engine, function, *args, timeout_secs=timeout_secs)
        return self.meter.watch(call)

    def close(self) -> None:
        """Kill the process, and let others have the device."""
        self.pool.close()
        if self._held is not None:
            self._held.close()

    def _hold(self, seat: inventory.LocalDevice) -> None:
        """Hold a GPU; the CPU is held by whoever works with the data directory.

        Raises:
            DeviceBusy: If another process holds it.
        """
        if seat.uuid is None or self._held is not None:
            return
        with ExitStack() as stack:
            stack.enter_context(gpu_lock(seat.uuid))
            self._held = stack.pop_all()
