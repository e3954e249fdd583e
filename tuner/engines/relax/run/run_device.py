"""Devices that run artifacts: their contract, and the local device; rpc.py has remote ones."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import tvm

from tuner.devices import gpus
from tuner.engines.base import EvaluatorSettings
from tuner.engines.relax.run import cache_operations, clock, graph_timer
from tuner.engines.relax.target import devices
from tuner.engines.runtime import cache_state
from tuner.engines.runtime.cache_state import Arguments
from tuner.engines.runtime.timing import SampleHook
from tuner.workers import worker_process

# The largest L2 on the market, for targets and devices that do not report theirs.
_MAX_L2_BYTES = 128 * 2**20


class RunDevice(Protocol):
    """A device, local or remote, that loads artifacts and runs them.

    Attributes:
        has_graphs: True if kernels of a GPU can be timed in graphs of launches.
    """

    has_graphs: bool

    def device(self, target: str) -> Any:
        """Return TVM's device for code of a target."""

    def load(self, library: Path) -> tvm.runtime.Module:
        """Load a shared library from the disk of this machine."""

    def sample_hook(
        self, target: str, arguments: Arguments, settings: EvaluatorSettings
    ) -> SampleHook | None:
        """Return what to call before each sample; None if nothing here can be called."""

    def flush_bytes(self, target: str, settings: EvaluatorSettings) -> int:
        """Return the bytes to copy on the device before each sample, where there is no hook."""

    def cache_state(self, target: str, settings: EvaluatorSettings) -> dict[str, Any]:
        """Return the conditions that describe the caches before each sample."""

    def conditions(self, target: str) -> dict[str, Any]:
        """Return the clock conditions of the device; see :class:`tuner.engines.base.RunResult`."""

    def check_after(self, target: str, error: Exception) -> None:
        """Check the device after an error of a call on it."""


class LocalDevice:
    """The device of this machine."""

    has_graphs = True

    def __init__(self) -> None:
        self._kept_errors: list[Exception] = []

    def device(self, target: str) -> Any:
        """Return the CPU, or the GPU if it fits the target."""
        return devices.find_device(target)

    def load(self, library: Path) -> tvm.runtime.Module:
        """Load a shared library into this process."""
        return tvm.runtime.load_module(str(library))

    def sample_hook(
        self, target: str, arguments: Arguments, settings: EvaluatorSettings
    ) -> SampleHook | None:
        """Return the hook that restores the caches of a CPU, reads its clock and its counters."""
        if is_gpu(target):
            return None
        operations = cache_operations.operations() if settings.cache_flush else None
        restore = cache_state.restorer(operations, arguments, settings)
        return SampleHook(restore, clock.readings(target))

    def flush_bytes(self, target: str, settings: EvaluatorSettings) -> int:  # noqa: ARG002
        """Return 0: a hook or a graph decides where kernels read from."""
        return 0

    def cache_state(self, target: str, settings: EvaluatorSettings) -> dict[str, Any]:
        """Return where the weights of a kernel are."""
        if not is_gpu(target):
            return cache_state.describe(settings)
        if not settings.cache_flush:
            return {}
        l2_bytes = int(self.device(target).l2_cache_size_bytes or 0)
        is_cold = graph_timer.has_cold_weights(settings, l2_bytes)
        return {"weights": "memory" if is_cold else "shared cache"}

    def conditions(self, target: str) -> dict[str, Any]:
        """Return the clock conditions of a GPU; empty for a CPU."""
        uuid = _uuid() if is_gpu(target) else ""
        return gpus.read_conditions(uuid) if uuid else {}

    def check_after(self, target: str, error: Exception) -> None:
        """Refuse further calls if the GPU context is broken, which lasts until the process ends.

        After an illegal address, for example, every call fails. Freeing memory would fail as well,
        in a destructor, which ends the process before it can return a result: the error is kept,
        and with it the frames that it passed and their tensors.
        """
        if is_gpu(target) and devices.is_broken():
            self._kept_errors.append(error)
            worker_process.retire()


def is_gpu(target: str) -> bool:
    """Return True if the canonical JSON of a target names a GPU."""
    return bool(json.loads(target)["kind"] == "cuda")


@lru_cache(maxsize=1)
def _uuid() -> str:
    visible = gpus.visible_gpu()
    return visible[0].uuid if visible else ""


def gpu_flush_bytes(target: str) -> int:
    """Return the bytes to copy on a GPU so that nothing of a kernel stays in its L2.

    TVM copies before each sample, then waits for the device, then records the event that starts
    the clock (``WrapTimeEvaluator`` in timer.cc): the copy is not timed.
    """
    return 2 * int(json.loads(target).get("l2_cache_size_bytes", _MAX_L2_BYTES))


LOCAL = LocalDevice()
