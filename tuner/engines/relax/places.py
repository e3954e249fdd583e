"""Where kernels run: a device of this machine here, one behind an RPC server in rpc.py."""

import json
from pathlib import Path
from typing import Any, Protocol

import tvm

from tuner.engines.base import EvaluatorSettings
from tuner.engines.relax import flush

# Where a target does not say how large its L2 is: more than GPUs have.
_MOST_L2_BYTES = 64 * 2**20


class Place(Protocol):
    """Something that loads artifacts and has a device to run them on."""

    def device(self, target: str) -> Any:
        """Return the device for code of a target."""

    def load(self, library: Path) -> tvm.runtime.Module:
        """Load a shared library of this machine's disk."""

    def flush(self, target: str, settings: EvaluatorSettings) -> dict[str, Any]:
        """Return the options by which a time evaluator empties caches before each sample."""


class ThisMachine:
    """The device of this machine."""

    def device(self, target: str) -> Any:
        """See :class:`Place`."""
        return tvm.cuda() if json.loads(target)["kind"] == "cuda" else tvm.cpu()

    def load(self, library: Path) -> tvm.runtime.Module:
        """See :class:`Place`."""
        return tvm.runtime.load_module(str(library))

    def flush(self, target: str, settings: EvaluatorSettings) -> dict[str, Any]:
        """See :class:`Place`."""
        if json.loads(target)["kind"] == "cuda":
            return {"cache_flush_bytes": gpu_flush_bytes(target, settings)}
        return {"f_preproc": flush.install(settings.flush_bytes)}


def gpu_flush_bytes(target: str, settings: EvaluatorSettings) -> int:
    """Return how much to copy on a GPU so that nothing of a kernel stays in its L2."""
    l2_bytes = int(json.loads(target).get("l2_cache_size_bytes", _MOST_L2_BYTES))
    return max(2 * l2_bytes, settings.flush_bytes)


HERE = ThisMachine()
