"""Kernels of TVM's schedules in packs: how host code launches them."""

import pytest
import tvm
from tvm import te

from tests.gpu_compilers import needs_nvrtc
from tuner.engines.packed import WORKSPACE
from tuner.engines.relax import worker
from tuner.engines.relax.codegen.cuda.packing import pack_function
from tuner.engines.relax.schedules.gpu.defaults import schedule_by_default
from tuner.engines.relax.target.targets import make_target

pytestmark = needs_nvrtc


def _product(left: te.Tensor, right: te.Tensor) -> te.Tensor:
    inner = te.reduce_axis((0, 24))
    return te.compute((24, 24), lambda i, j: te.sum(left[i, inner] * right[inner, j], axis=inner))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_share_memory_between_them(arch: str) -> None:
    """Products of products, each by a kernel of its own: those between have places of their own."""
    target = make_target(worker.describe_target(f"cuda:{arch}").spec)
    given = te.placeholder((24, 24), name="given")
    square = _product(given, given)
    cube = _product(square, given)
    function = te.create_prim_func([given, _product(square, cube)])
    scheduled = schedule_by_default(tvm.IRModule({"main": function}), target)

    kernels, workspace_bytes = pack_function(scheduled["main"], target)

    second = WORKSPACE - 2304  # 24 x 24 numbers
    assert workspace_bytes == 2 * 2304
    assert [set(kernel.pointers) for kernel in kernels] == [
        {0, WORKSPACE}, {0, WORKSPACE, second}, {1, WORKSPACE, second}
    ]  # fmt: skip
    assert all(kernel.n_parameters == len(kernel.pointers) for kernel in kernels)
    assert len({kernel.code for kernel in kernels}) == 1
    assert len({kernel.name for kernel in kernels}) == 3
