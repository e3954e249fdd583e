"""Kernels of contractions agree with their workloads, in Triton's interpreter."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx, topi

from tests.gpu_compilers import needs_triton
from tests.tuner.engines.relax.triton.conftest import (
    Verify,
    branches,
    broken,
    convolution,
    gated,
    match,
    product,
    workload,
)
from tests.tuner.engines.relax.triton.interpreter import Interpreter
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.triton import variants
from tuner.engines.relax.triton.compilation import compiler
from tuner.engines.relax.triton.programs import Program
from tuner.engines.relax.triton.templates.configurations import Configuration
from tuner.engines.relax.triton.templates.contractions import Contraction
from tuner.engines.relax.triton.templates.gemm import print_program

pytestmark = needs_triton

_PLAIN = Configuration(16, 16, 32, 2, 4)
_SPLIT = Configuration(32, 16, 16, 2, 4, 2, order="columns")
_LAST = replace(_SPLIT, is_one_kernel=True)


def program_of(ir: bytes, configuration: Configuration) -> Program:
    """Print the kernels of a workload that Triton has to match."""
    return print_program(match(Contraction, ir), configuration)


@pytest.mark.parametrize(
    ("dtype", "configuration"),
    [("float16", _PLAIN), ("bfloat16", _LAST), ("float32", _PLAIN), ("int8", _LAST)],
)
def test_tiles_need_not_divide_a_product(
    dtype: str, configuration: Configuration, verify: Verify
) -> None:
    """Rows, columns and steps end inside of a tile, for each type and with shared sums."""
    ir = product((1, 37, 23, 75), dtype)

    assert verify(ir, program_of(ir, configuration)) == ""


def test_float32_keeps_its_digits(verify: Verify) -> None:
    """A product of the first digits alone, as other libraries have it, fails its verification."""
    ir = product((1, 37, 23, 75), "float32")
    short = broken(program_of(ir, _PLAIN), "tf32x3", "tf32")

    assert verify(ir, short) != ""


@pytest.mark.parametrize(
    ("shape", "transposed"),
    [((3, 17, 16, 32), False), ((2, 1, 40, 70), True), ((1, 5, 1, 33), False)],
    ids=["batch", "row", "column"],
)
def test_batches_and_single_rows(
    shape: tuple[int, int, int, int], *, transposed: bool, verify: Verify
) -> None:
    """Products have a second operand in either order, and one row or column."""
    ir = product(shape, transposed=transposed)
    contraction = match(Contraction, ir)
    n_rows = 1 if contraction.n_rows == 1 else 16
    configuration = Configuration(n_rows, 16, 32, 2, 4, 2, is_one_kernel=not transposed)

    assert verify(ir, print_program(contraction, configuration)) == ""


def _constant(value: float) -> Callable[[Any], Any]:
    return lambda x: tirx.const(value, str(x.dtype))


def _gelu(x: Any) -> Any:
    one, half, root = (_constant(value)(x) for value in (1.0, 0.5, 1.4140625))
    return x * (tirx.erf(x / root) + one) * half


def _mish(x: Any) -> Any:
    return x * tirx.tanh(tirx.log(_constant(1.0)(x) + tirx.exp(x)))


def _hard_swish(x: Any) -> Any:
    clipped = tirx.min(tirx.max(x + _constant(3.0)(x), _constant(0.0)(x)), _constant(6.0)(x))
    return x * clipped / _constant(6.0)(x)


_ACTIVATIONS: list[Callable[[Any], Any]] = [
    _gelu,
    _mish,
    _hard_swish,
    lambda x: x * tirx.sigmoid(x),
    lambda x: tirx.Select(x > _constant(0.0)(x), x, x * _constant(0.1)(x)),
    lambda x: tirx.if_then_else(x < _constant(0.0)(x), tirx.exp(x) - _constant(1.0)(x), x),
    lambda x: tirx.sqrt(tirx.abs(x)) + tirx.rsqrt(x * x + _constant(1.0)(x)),
    lambda x: tirx.power(x, _constant(2.0)(x)),
    lambda x: tirx.sin(x) + tirx.cos(x),
    lambda x: tirx.log1p(tirx.abs(x)),
]


@pytest.mark.parametrize("configuration", [_PLAIN, _SPLIT], ids=["one kernel", "two kernels"])
def test_activations_are_those_of_the_workload(
    configuration: Configuration, verify: Verify
) -> None:
    """Functions of the sums are printed from their definition."""
    ir = product((1, 20, 24, 40), after=lambda x: sum(each(x) for each in _ACTIVATIONS))

    assert verify(ir, program_of(ir, configuration)) == ""


@pytest.mark.parametrize("is_swapped", [False, True], ids=["rows", "columns"])
def test_unsigned_bytes_are_multiplied_by_signed_ones(is_swapped: bool, verify: Verify) -> None:
    """Tensor cores multiply them less 128, also in tiles that end beyond the product."""
    data, weight = (
        te.placeholder((n, 72), kind, name=kind) for n, kind in ((20, "uint8"), (24, "int8"))
    )
    step = te.reduce_axis((0, 72), name="step")

    def multiplied(*place: Any) -> Any:
        row, column = place[::-1] if is_swapped else place
        factors = (each.astype("int32") for each in (data[row, step], weight[column, step]))
        return te.sum(next(factors) * next(factors), axis=step)

    ir = workload([data, weight, te.compute((24, 20) if is_swapped else (20, 24), multiplied)])
    for configuration in (_PLAIN, _SPLIT):
        assert verify(ir, program_of(ir, configuration), ["whole"]) == ""

    binary = compiler.compile_kernel(program_of(ir, _PLAIN).kernels[0], "sm_80")
    assert binary.facts.uses_tensor_cores
    assert binary.facts.stack_bytes == 0


@pytest.mark.parametrize("rounded", [tirx.nearbyint, tirx.round], ids=["nearbyint", "round"])
def test_results_are_rounded_to_bytes(rounded: Callable[[Any], Any], verify: Verify) -> None:
    """Sums of bytes are scaled, rounded to even and limited."""

    def quantised(x: Any) -> Any:
        scaled = rounded(x.astype("float32") * tirx.const(0.03125, "float32"))
        low, high = tirx.const(-128.0, "float32"), tirx.const(127.0, "float32")
        return tirx.min(tirx.max(scaled, low), high)

    ir = product((1, 20, 24, 64), "int8", after=quantised, out_dtype="int8")

    assert verify(ir, program_of(ir, _PLAIN)) == ""


def test_operands_are_computed_as_they_are_loaded(verify: Verify) -> None:
    """An activation in front of the product is not zero where the steps end inside of a tile."""
    ir = product((1, 20, 24, 40), before=tirx.sigmoid)

    assert verify(ir, program_of(ir, _PLAIN)) == ""


@pytest.mark.parametrize(
    ("arguments", "options", "configuration"),
    [
        ((3, (16, 24), 3), {}, Configuration(16, 16, 16, 2, 4, 3)),
        ((6, (16, 16), 3), {"stride": 2, "dilation": 2}, Configuration(32, 16, 16, 2, 4)),
        ((7, (3, 16), 5), {"stride": 2}, Configuration(16, 16, 32, 2, 4, 2, is_one_kernel=True)),
        ((4, (32, 32), 3), {"groups": 2}, Configuration(32, 16, 16, 2, 4)),
        ((4, (24, 16), 1), {}, Configuration(16, 16, 32, 2, 4)),
    ],
    ids=["split", "strides", "stem", "groups", "pointwise"],
)
def test_convolutions_are_products(
    arguments: tuple[int, tuple[int, int], int],
    options: dict[str, Any],
    configuration: Configuration,
    verify: Verify,
) -> None:
    """Windows, strides, dilation, padding and groups are addresses of operands."""
    ir = convolution(*arguments, **options)

    assert verify(ir, program_of(ir, configuration)) == ""


@pytest.mark.parametrize(
    ("configuration", "old", "new", "number"),
    [
        (_PLAIN, "mask=(m < 37)", "mask=(m < 36)", 0),
        (_PLAIN, "other=0", "other=1", 0),
        (_PLAIN, "tl.load(p2 + n, mask=(n < 23)", "tl.load(p2 + n * 0, mask=(n < 23)", 0),
        (_PLAIN, "tl.dot(left, right, acc, ", "tl.dot(left, right, ", 0),
        # Sums that no block writes, or that are added before all blocks wrote theirs.
        (_SPLIT, "part = pid", "part = 0 * pid", 0),
        (_LAST, "tl.range(2, ", "tl.range(1, ", 0),
        (_LAST, "tl.where(number == part, own, other)", "other", 0),
        (_LAST, "+ pid % 4", "+ pid % 2", 0),
    ],
)
def test_broken_kernels_are_found(
    configuration: Configuration, old: str, new: str, number: int, verify: Verify
) -> None:
    """A template with an error fails its verification."""
    ir = product((1, 37, 23, 75))

    assert verify(ir, broken(program_of(ir, configuration), old, new, number)) != ""


@pytest.mark.parametrize(("n_rows", "n_splits"), [(1, 16), (20, 3), (20, 6)])
def test_the_last_block_adds_what_a_second_kernel_adds(
    n_rows: int, n_splits: int, interpret: Interpreter
) -> None:
    """Parts are added in their order, whichever block of a tile is the last."""
    ir = product((1, n_rows, 23, 16 * n_splits))
    split = Configuration(min(n_rows, 16), 16, 16, 2, 4, n_splits)
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal([int(size) for size in each.shape]).astype(str(each.dtype))
        for each in workloads.load(ir)["main"].params
    ]

    expected = interpret(program_of(ir, split), arrays)[-1]

    program = program_of(ir, replace(split, is_one_kernel=True))
    for seed in range(3):
        np.testing.assert_array_equal(interpret(program, arrays, seed=seed)[-1], expected)


def test_counters_are_zero_after_each_run(verify: Verify) -> None:
    """The last block resets the counter of its tile, for the next launch."""
    ir = product((1, 37, 23, 75))

    with pytest.raises(ValueError, match="leaves counters"):
        verify(ir, broken(program_of(ir, _LAST), "tl.store(counter, 0)", ""))


def _normed(
    shape: tuple[int, int, int], norm: str, dtype: str = "float16", *, returns_sum: bool = False
) -> bytes:
    """Return a product with bias and residual, and a function of its whole rows.

    Args:
        shape: Rows, columns, and steps.
        norm: Name of the function.
        dtype: Type of the operands and outputs.
        returns_sum: True if the operand of the function is an output too.
    """
    n_rows, n_columns, n_steps = shape
    sizes = {
        "first": (n_rows, n_steps),
        "second": (n_steps, n_columns),
        "residual": (n_rows, n_columns),
        **dict.fromkeys(("bias", "scale", "shift"), (n_columns,)),
    }
    first, second, residual, bias, scale, shift = (
        te.placeholder(size, dtype, name=name) for name, size in sizes.items()
    )
    step = te.reduce_axis((0, n_steps), name="step")
    sums = te.compute(
        (n_rows, n_columns),
        lambda i, j: te.sum(
            first[i, step].astype("float32") * second[step, j].astype("float32"), axis=step
        ),
        name="sums",
    )
    added = te.compute(
        (n_rows, n_columns),
        lambda i, j: sums[i, j].astype(dtype) + bias[j] + residual[i, j],
        name="added",
    )
    arguments = [first, second, bias, residual]
    if norm == "softmax":
        result = topi.cast(topi.nn.softmax(topi.cast(added, "float32")), dtype)
    elif norm == "rms_norm":
        result = topi.nn.rms_norm(added, scale, [1], 1e-5)
        arguments.append(scale)
    else:
        result = topi.nn.layer_norm(added, scale, shift, [1], 1e-5)
        arguments += [scale, shift]
    return workload([*arguments, *([added] if returns_sum else []), result])


_ONE = Configuration(1, 64, 16, 1, 4, 2)


@pytest.mark.parametrize(
    ("ir", "configuration"),
    [
        (_normed((1, 96, 80), "layer_norm", returns_sum=True), _ONE),
        (_normed((1, 4104, 16), "rms_norm"), replace(_ONE, n_splits=1)),
        (_normed((7, 33, 64), "rms_norm", "bfloat16", returns_sum=True), _SPLIT),
        (_normed((6, 50, 32), "softmax"), _SPLIT),
        (_normed((19, 100, 40), "layer_norm", returns_sum=True), _LAST),
        (_normed((1, 96, 80), "layer_norm"), replace(_ONE, is_one_kernel=True)),
    ],
    ids=["row", "long", "bfloat16", "softmax", "last block", "last row"],
)
def test_rows_of_the_sums_are_normalised(
    ir: bytes, configuration: Configuration, verify: Verify
) -> None:
    """The block that adds the parts holds whole rows; the operand of a norm may be an output."""
    program = program_of(ir, configuration)

    assert len(program.kernels) == 2 - configuration.is_one_kernel
    assert verify(ir, program) == ""


def test_rows_that_no_block_holds_stay_apart() -> None:
    """Reductions of other rows, and of longer ones, are kernels of their own."""
    assert variants.GEMM.find(workloads.load(_normed((2, 16385, 16), "rms_norm"))["main"]) is None


@pytest.mark.parametrize(
    ("ir", "configuration"),
    [
        (gated((19, 23, 40)), _PLAIN),
        (gated((1, 40, 80)), replace(_ONE, n_splits=1)),
        (branches(5, (40, 24, 20)), _PLAIN),
    ],
    ids=["gate", "row", "branches"],
)
def test_two_products_are_sums_of_one_kernel(
    ir: bytes, configuration: Configuration, verify: Verify
) -> None:
    """The products of an element have a loop each, and what follows reads both sums."""
    program = program_of(ir, configuration)

    assert verify(ir, program) == ""
    if configuration.rows > 1:
        assert verify(ir, broken(program, "beside = tl.dot(", "other = tl.dot("))


@pytest.mark.parametrize(("shape", "pays"), [((128, 704, 256), True), ((16, 256, 8192), False)])
def test_two_products_share_a_kernel_where_it_is_faster(
    shape: tuple[int, int, int], *, pays: bool
) -> None:
    """Long products of few sums have parts, which two in one kernel have not."""
    assert variants.fits(workloads.load(gated(shape))["main"]) is pays
