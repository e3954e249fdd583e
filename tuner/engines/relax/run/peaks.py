"""Peaks of this CPU, by :mod:`tuner.engines.runtime.peak_kernels`, or GPU; calibration kernels."""

from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm import te
from tvm.script import from_source
from tvm.script import tirx as T  # noqa: N812  the name in TVMScript
from tvm.tirx import PrimFunc

from tuner.devices import gpus
from tuner.devices.gpus import Gpu, GpuLimits
from tuner.engines.base import DevicePeaks
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.target.kinds import is_cuda
from tuner.engines.relax.target.targets import make_target
from tuner.engines.relax.triton.compilation import compiler
from tuner.engines.relax.triton.gpus import gpu_of
from tuner.engines.runtime import peak_kernels
from tuner.engines.runtime.peak_kernels import PeakKernel, Run
from tuner.errors import RequestError

_HEADER = ("@T.prim_func(s_tir=True)",)
# Name under which the time evaluator looks up what precedes a run.
_HOOK = "tuner.before_peak"
# Operations of float32 per cycle of a multiprocessor without tensor cores; and products of tensor
# cores for one of float32, of which each is half as fast as one of float16.
_FLOAT32_OPERATIONS, _FLOAT32_PRODUCTS = 256, 3
# Transfers of memory per cycle of the clock that NVML tells.
_TRANSFERS = 2
# Unscheduled on one core of a CPU, and with the default schedule on a GPU.
_CPU_SIZE = 192
_GPU_SIZE = 2048


def measure_peaks(target: str) -> DevicePeaks:
    """Measure the peaks of this CPU, or compute those of this GPU; see :class:`Engine`.

    Raises:
        RequestError: If the target is a GPU that is not here, or whose clocks are unknown.
        WorkError: If something else uses the cores all the time.
    """
    resolved = make_target(target)
    if is_cuda(resolved):
        visible = gpus.visible_gpu()
        if visible is None:
            raise RequestError("the peaks of a GPU are known where it is")
        return peaks_of(*visible)

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


def peaks_of(gpu: Gpu, limits: GpuLimits) -> DevicePeaks:
    """Return the peaks of a GPU at its highest clocks.

    What its units do in a cycle is as in the data sheet of the GPU that stands for its architecture
    in the model of Triton's kernels.

    Args:
        limits: Its units, the width of its memory and the size of its cache.

    Raises:
        RequestError: If its clocks are unknown.
    """
    if gpu.max_sm_mhz is None or gpu.max_memory_mhz is None:
        raise RequestError(f"the clocks of {gpu.name} are unknown, and with them its peaks")
    model = gpu_of(compiler.number_of(gpu.arch))
    cycles = limits.n_multiprocessors * gpu.max_sm_mhz * 1e6
    half = model.flops / (model.n_multiprocessors * model.hertz) * cycles
    single = max(half / 2 / _FLOAT32_PRODUCTS, _FLOAT32_OPERATIONS * cycles)
    return DevicePeaks(
        flops={"float16": half, "bfloat16": half, "int8": 2 * half, "float32": single},
        cache_bytes=limits.l2_bytes,
        cache_bandwidth=model.fill_bytes * cycles,
        memory_bandwidth=_TRANSFERS * gpu.max_memory_mhz * 1e6 * limits.memory_bits / 8,
        weights_kept_secs=None,
    )


def calibration_kernel(target: str) -> bytes:
    """Return the IR of a kernel; see :class:`Engine`."""
    size = _GPU_SIZE if is_cuda(make_target(target)) else _CPU_SIZE
    return workloads.dump(workloads.as_workload(_matmul(size)))


def _matmul(size: int) -> PrimFunc:
    a = te.placeholder((size, size), "float32", "a")
    b = te.placeholder((size, size), "float32", "b")
    k = te.reduce_axis((0, size), "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    return te.create_prim_func([a, b, c])
