"""Measurement of the peaks of this CPU; see :mod:`tuner.engines.runtime.peak_kernels`."""

from collections.abc import Callable

import numpy as np
import tvm
from tvm import te
from tvm.auto_scheduler import ComputeDAG, SearchTask
from tvm.script import from_source
from tvm.script import tir as T  # noqa: N812  the name in TVMScript

from tuner.engines.base import DevicePeaks
from tuner.engines.relay import workloads
from tuner.engines.relay.targets import hardware_of, make_target
from tuner.engines.runtime import peak_kernels
from tuner.engines.runtime.peak_kernels import PeakKernel, Run

# Unscheduled, on one core.
_SIZE = 192


_HEADER = ("@T.prim_func",)
# Name under which the time evaluator looks up what precedes a run.
_HOOK = "tuner.before_peak"


def measure_peaks(target: str) -> DevicePeaks:
    """Measure the peaks of this CPU; see :class:`Engine`."""
    resolved = make_target(target)

    def build(kernel: PeakKernel) -> Run:
        function = from_source(kernel.script(_HEADER, "tir.noalias"), extra_vars={"T": T})
        module = tvm.build(tvm.IRModule({"main": function}), target=resolved)
        # Pages that were never written would all be the same page of zeros.
        arguments = [tvm.nd.array(np.full(shape, 0.5, kernel.dtype)) for shape in kernel.shapes]

        def run(before: Callable[[], None] = lambda: None) -> float:
            tvm._ffi.register_func(_HOOK, lambda *_: before(), override=True)
            evaluator = module.time_evaluator(
                "main", tvm.cpu(), number=1, repeat=1, f_preproc=_HOOK
            )
            return float(evaluator(*arguments).mean)

        return run

    return peak_kernels.measure(build)


def calibration_kernel(target: str) -> bytes:
    """Return the IR of a kernel; see :class:`Engine`."""
    a = te.placeholder((_SIZE, _SIZE), name="a")
    b = te.placeholder((_SIZE, _SIZE), name="b")
    k = te.reduce_axis((0, _SIZE), name="k")
    c = te.compute((_SIZE, _SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    dag = ComputeDAG([a, b, c])
    task = SearchTask(
        compute_dag=dag,
        workload_key=dag.workload_key(),
        target=make_target(target),
        hardware_params=hardware_of(target),
        desc="matmul",
    )
    return workloads.dump(task)
