"""Where kernels run: a device of this machine here, one behind an RPC server in rpc.py."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import tvm

from tuner.devices import gpus
from tuner.engines.base import EvaluatorSettings
from tuner.engines.relax import devices, flush
from tuner.workers import process

# Where neither a target nor its device says how large its L2 is: as large as they come.
_MOST_L2_BYTES = 128 * 2**20


class Place(Protocol):
    """Something that loads artifacts and has a device to run them on."""

    def device(self, target: str) -> Any:
        """Return the device for code of a target."""

    def load(self, library: Path) -> tvm.runtime.Module:
        """Load a shared library of this machine's disk."""

    def flush(self, target: str, settings: EvaluatorSettings) -> dict[str, Any]:
        """Return the options by which a time evaluator empties caches before each sample."""

    def conditions(self, target: str) -> dict[str, Any]:
        """Return what the device tells of its clocks; see :class:`tuner.engines.base.RunResult`."""

    def settle(self, target: str, error: Exception) -> None:
        """Look after the device when something has failed on it."""


class ThisMachine:
    """The device of this machine."""

    def __init__(self) -> None:
        self._kept: list[Exception] = []

    def device(self, target: str) -> Any:
        """See :class:`Place`."""
        return devices.find_device(target)

    def load(self, library: Path) -> tvm.runtime.Module:
        """See :class:`Place`."""
        return tvm.runtime.load_module(str(library))

    def flush(self, target: str, settings: EvaluatorSettings) -> dict[str, Any]:
        """See :class:`Place`."""
        if is_gpu(target):
            told = self.device(target).l2_cache_size_bytes or 0
            return {"cache_flush_bytes": max(2 * told, gpu_flush_bytes(target, settings))}
        return {"f_preproc": flush.install(settings.flush_bytes)}

    def conditions(self, target: str) -> dict[str, Any]:
        """See :class:`Place`; a CPU tells nothing."""
        uuid = _uuid() if is_gpu(target) else ""
        return gpus.read_conditions(uuid) if uuid else {}

    def settle(self, target: str, error: Exception) -> None:
        """Serve no further call if the context of the GPU is broken, as it is until a process ends.

        An illegal address, say, fails whatever follows. Freeing memory would fail as well, in a
        destructor, which ends the process before it can answer: the error is kept, and with it
        the frames that it went through and their tensors.
        """
        if is_gpu(target) and devices.is_broken():
            self._kept.append(error)
            process.retire()


def is_gpu(target: str) -> bool:
    """Whether the canonical JSON of a target names a GPU."""
    return bool(json.loads(target)["kind"] == "cuda")


@lru_cache(maxsize=1)
def _uuid() -> str:
    found = gpus.visible_gpu()
    return found[0].uuid if found else ""


def gpu_flush_bytes(target: str, settings: EvaluatorSettings) -> int:
    """Return how much to copy on a GPU so that nothing of a kernel stays in its L2.

    TVM copies before each sample, then waits for the device, then records the event that starts
    the clock (``WrapTimeEvaluator`` in timer.cc): the copy is not timed.
    """
    l2_bytes = int(json.loads(target).get("l2_cache_size_bytes", _MOST_L2_BYTES))
    return max(2 * l2_bytes, settings.flush_bytes)


HERE = ThisMachine()
