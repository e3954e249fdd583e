"""Measurement of the peaks of this CPU; see :mod:`tuner.engines.runtime.peak_kernels`."""

from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm.script import from_source
from tvm.script import tirx as T  # noqa: N812  the name in TVMScript

from tuner.engines.base import DevicePeaks
from tuner.engines.relax.target.kinds import is_cuda
from tuner.engines.relax.target.targets import make_target
from tuner.engines.runtime import peak_kernels
from tuner.engines.runtime.peak_kernels import PeakKernel, Run
from tuner.errors import RequestError

_HEADER = ("@T.prim_func(s_tir=True)",)
# Name under which the time evaluator looks up what precedes a run.
_HOOK = "tuner.before_peak"


def measure_peaks(target: str) -> DevicePeaks:
    """Measure the peaks of this CPU; see :class:`Engine`.

    Raises:
        RequestError: If the target is a GPU.
        WorkError: If something else uses the cores all the time.
    """
    resolved = make_target(target)
    if is_cuda(resolved):
        raise RequestError("the peaks of a GPU cannot be measured")

    def build(kernel: PeakKernel) -> Run:
        function = from_source(kernel.script(_HEADER, "tirx.noalias"), extra_vars={"T": T})
        module = tvm.tirx.build(tvm.IRModule({"main": function}), target=resolved)
        # Pages that were never written would all be the same page of zeros.
        arguments = [
            tvm.runtime.tensor(np.full(shape, 0.5, kernel.dtype)) for shape in kernel.shapes
        ]

        def run(before: Callable[[], None] = lambda: None) -> float:
            tvm_ffi.register_global_func(_HOOK, lambda *_: before(), override=True)
            evaluator = module.time_evaluator(
                "main", tvm.cpu(), number=1, repeat=1, f_preproc=_HOOK
            )
            return float(evaluator(*arguments).mean)

        return run

    return peak_kernels.measure(build)
