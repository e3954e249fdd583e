"""Runner of a device of this machine, in one process that does nothing else.

Threads that a search or a training leaves behind would slow down kernels that the same process
times; builders therefore never time, and the runner never searches.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tuner.devices import inventory, target_matching
from tuner.devices.locks import gpu_lock
from tuner.engines.base import TargetInfo
from tuner.errors import DeviceBusy
from tuner.settings import Settings
from tuner.workers.base import Call, FutureCall
from tuner.workers.factory import runner_pool
from tuner.workers.utilisation import UtilisationMeter

if TYPE_CHECKING:
    from tuner.workers.pool import Pool

_DESCRIBE_TIMEOUT_SECS = 300.0


class LocalRunner:
    """Runner in one process, which owns its device.

    Args:
        settings: Settings that name the engine.
        name: Name of the device.
        shares_cores: True for the CPU of this machine.
        device: The device; a GPU is held from the first call until the runner is closed. None
            for a process without a device of its own.
        meter: Meter of the time that it works; a new one by default.
    """

    n_ahead = 1

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        shares_cores: bool,
        device: inventory.LocalDevice | None = None,
        meter: UtilisationMeter | None = None,
    ) -> None:
        self.name = name
        self.shares_cores = shares_cores
        self.meter = meter or UtilisationMeter()
        self.pool: Pool = device.open(settings) if device else runner_pool(settings)
        self._engine = settings.engine
        self._device = device
        self._held: ExitStack | None = None

    @property
    def environ(self) -> Mapping[str, str]:
        """Environment variables that show this device alone to a process."""
        return {} if self._device is None else self._device.environ

    def describe(self, spec: str) -> Call:
        """Resolve a target in the process of the device."""
        if self._device is None:
            function: tuple[str, ...] = (self._engine, "describe_target", spec)
            return self.pool.submit(*function, timeout_secs=_DESCRIBE_TIMEOUT_SECS)
        refused = target_matching.refusal(self._device.kind, spec)
        if refused is not None:
            # A refusal needs no process.
            described: Future[TargetInfo] = Future()
            described.set_result(refused)
            return FutureCall(described)
        try:
            self._hold(self._device)
        except DeviceBusy as error:
            busy: Future[TargetInfo] = Future()
            busy.set_exception(error)
            return FutureCall(busy)
        function = (target_matching.__name__, "describe", self._engine, self._device.kind, spec)
        return self.pool.submit(*function, timeout_secs=_DESCRIBE_TIMEOUT_SECS, returns=TargetInfo)

    def measure(self, function: str, *args: Any, timeout_secs: float) -> FutureCall:
        """Call a function of the engine in the process of the device."""
        call = self.pool.submit(self._engine, function, *args, timeout_secs=timeout_secs)
        return self.meter.watch(call)

    def close(self) -> None:
        """Kill the process and release the device."""
        self.pool.close()
        if self._held is not None:
            self._held.close()

    def _hold(self, device: inventory.LocalDevice) -> None:
        """Hold a GPU; the owner of the data directory holds the CPU.

        Raises:
            DeviceBusy: If another process holds it.
        """
        if device.uuid is None or self._held is not None:
            return
        with ExitStack() as stack:
            stack.enter_context(gpu_lock(device.uuid))
            self._held = stack.pop_all()
