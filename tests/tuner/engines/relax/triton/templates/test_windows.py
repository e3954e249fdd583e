"""Reductions of windows agree with their workloads, in Triton's interpreter."""

from collections.abc import Callable

import pytest
from tvm import te, tirx, topi

from tests.gpu_compilers import needs_triton
from tests.tuner.engines.relax.triton.conftest import ALL_KINDS, Verify, broken, match, workload
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.triton import variants
from tuner.engines.relax.triton.compilation.compiler import compile_kernel
from tuner.engines.relax.triton.programs import Program
from tuner.engines.relax.triton.templates.windows import (
    Configuration,
    Windows,
    print_program,
    ranked,
)

pytestmark = needs_triton


def program_of(ir: bytes, configuration: Configuration) -> Program:
    """Print the kernel of a workload that Triton has to match."""
    return print_program(match(Windows, ir), configuration)


def depthwise(kernel: int, stride: int = 1, dtype: str = "float16") -> bytes:
    """Return a depthwise convolution of 20 channels."""
    data = te.placeholder((1, 7, 7, 20), dtype, name="data")
    weight = te.placeholder((kernel, kernel, 20), dtype, name="weight")
    bias = te.placeholder((20,), dtype, name="bias")
    pad = kernel // 2
    padded = topi.nn.pad(data, [0, pad, pad, 0])
    size = -(-7 // stride)
    h, w = (te.reduce_axis((0, kernel), name) for name in "hw")
    total = "int32" if dtype == "int8" else "float32"
    sums = te.compute(
        (1, size, size, 20),
        lambda b, y, x, c: te.sum(
            padded[b, y * stride + h, x * stride + w, c].astype(total)
            * weight[h, w, c].astype(total),
            [h, w],
        ),
    )
    if dtype == "int8":
        return workload([data, weight, sums])
    made = te.compute(
        sums.shape,
        lambda b, y, x, c: tirx.max(sums[b, y, x, c] + bias[c].astype(total), tirx.const(0.0)),
    )
    return workload([data, weight, bias, topi.cast(made, dtype)])


def _max_pool(dtype: str) -> bytes:
    data = te.placeholder((1, 11, 11, 24), dtype, name="data")
    return workload([data, topi.nn.pool2d(
        data, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max", layout="NHWC"
    )])  # fmt: skip


_WORKLOADS: dict[str, Callable[[], bytes]] = {
    "depthwise with stride": lambda: depthwise(5, 2),
    "depthwise of bfloat16": lambda: depthwise(3, 1, "bfloat16"),
    "depthwise of integers": lambda: depthwise(3, 1, "int8"),
    "maxima": lambda: _max_pool("float16"),
    "maxima of bytes": lambda: _max_pool("int8"),
}


@pytest.mark.parametrize("name", _WORKLOADS)
def test_windows_are_reduced(name: str, verify: Verify) -> None:
    """Windows leave the input at its ends, and tiles the output."""
    ir = _WORKLOADS[name]()

    assert verify(ir, program_of(ir, Configuration(64, 32, 4)), ALL_KINDS) == ""


@pytest.mark.parametrize("name", ["depthwise of integers", "maxima"])
def test_windows_have_kernels_without_a_record(name: str) -> None:
    """The first configuration compiles, and spills no register."""
    module = workloads.load(_WORKLOADS[name]())
    matched = Windows.find(module["main"])
    assert matched is not None
    names = [each.name for each in ranked(matched, 90)]

    (kernel,) = print_program(matched, ranked(matched, 90)[0]).kernels

    assert len(set(names)) == len(names) > 10
    assert [Configuration.named(each) for each in names] == list(ranked(matched, 90))
    assert compile_kernel(kernel, "sm_90").facts.stack_bytes == 0
    assert variants.WINDOWS.find(module["main"]) is not None


def test_wrong_windows_are_found(verify: Verify) -> None:
    """A kernel that leaves out a number of each window is wrong."""
    ir = depthwise(3)
    program = program_of(ir, Configuration(64, 32, 4))

    assert verify(ir, broken(program, "static_range(9)", "static_range(8)")) != ""
