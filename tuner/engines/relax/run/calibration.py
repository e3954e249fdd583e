"""Kernel that devices are compared by: a matrix product sized for the device."""

from tvm import te
from tvm.tirx import PrimFunc

from tuner.engines.relax.ir import workloads
from tuner.engines.relax.target.kinds import is_cuda
from tuner.engines.relax.target.targets import make_target

# Unscheduled on one core of a CPU, and with the default schedule on a GPU.
_CPU_SIZE = 192
_GPU_SIZE = 2048


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
