"""Execution of artifacts: comparison of the outputs, then timing, then comparison again."""

import json
from collections.abc import Sequence
from pathlib import Path

import tvm

from tuner.engines import runs
from tuner.engines.base import RunRequest, RunResult
from tuner.engines.relay.codegen import build as artifacts
from tuner.engines.relay.run import timing
from tuner.engines.runs import LoadedKernel
from tuner.engines.verification.checks import Array


class Kernel(LoadedKernel):
    """A loaded artifact with its arguments in memory."""

    def bind(self, arrays: Sequence[Array]) -> None:
        """Copy inputs, packed as the kernel expects them."""
        self.arguments = [tvm.nd.array(array) for array in arrays]
        for entry in self.packed:
            packed = tvm.nd.empty(tuple(entry["shape"]), entry["dtype"])
            pack = self.module[artifacts.pack_name(entry["index"])]
            pack(self.arguments[entry["index"]], packed)
            self.arguments[entry["index"]] = packed


def run(request: RunRequest) -> RunResult:
    """Compare and time one artifact; see :class:`Engine`."""
    return runs.run(_load, request, timing.sample)


def run_interleaved(requests: list[RunRequest], n_turns: int) -> list[RunResult]:
    """Time artifacts in turns; see :class:`Engine`."""
    return runs.run_interleaved(_load, requests, timing.sample, n_turns)


def _load(request: RunRequest) -> Kernel:
    """Load an artifact; its inputs are not bound yet."""
    folder = Path(request.artifact)
    description = json.loads((folder / artifacts.DESCRIPTION).read_text())
    return Kernel(
        module=tvm.runtime.load_module(str(folder / artifacts.LIBRARY)),
        inputs=tuple((tuple(each["shape"]), each["dtype"]) for each in description["inputs"]),
        weight_indices=description["weights"],
        outputs=[tvm.nd.empty(tuple(e["shape"]), e["dtype"]) for e in description["outputs"]],
        packed=description["packed"],
    )
