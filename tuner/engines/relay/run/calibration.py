"""Kernel that devices are compared by: a matrix product."""

from tvm import te
from tvm.auto_scheduler import ComputeDAG, SearchTask

from tuner.engines.relay import workloads
from tuner.engines.relay.targets import hardware_of, make_target

# Unscheduled, on one core.
_SIZE = 192


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
