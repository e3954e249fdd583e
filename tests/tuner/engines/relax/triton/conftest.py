"""Workloads for Triton, and their verification in its interpreter."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi

from tests.tuner.engines.relax.triton import interpreter
from tests.tuner.engines.relax.triton.interpreter import Array, Interpreter
from tuner.engines.base import InputKind, ReferenceRequest
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.run import reference
from tuner.engines.relax.triton.programs import Program
from tuner.engines.verification import checks, comparison, references

SPEC = '{"kind":"cuda","arch":"sm_90"}'
# Finds what is wrong with the outputs of a program for kinds of inputs; empty if nothing is.
Verify = Callable[..., str]
# Dense numbers; and whole ones, with NaN and infinities among them.
ALL_KINDS: tuple[InputKind, ...] = ("real", "whole")


@pytest.fixture(scope="session")
def interpret() -> Iterator[Interpreter]:
    """A process that interprets programs."""
    with interpreter.started() as started:
        yield started


@pytest.fixture
def verify(interpret: Interpreter, tmp_path: Any) -> Verify:
    """Compare the outputs of a program with the references of its workload.

    With a number of blocks, run those of the program's one kernel, and compare what they wrote.
    """

    def find_difference(
        ir: bytes, program: Program, kinds: Sequence[InputKind] = ("real",), n_blocks: int = 0
    ) -> str:
        function = workloads.load(ir)["main"]
        for kind in kinds:
            path = tmp_path / f"{kind}.npz"
            path.write_bytes(_reference(ir, kind))
            expected = references.load(str(path))
            inputs = expected.draw()
            outputs = [
                checks.spoiled([int(size) for size in each.shape], str(each.dtype))
                for each in function.params[len(inputs) :]
            ]
            results = interpret(program, [*inputs, *outputs], n_blocks)[len(inputs) :]
            for result, each in zip(results, expected.outputs, strict=True):
                if n_blocks and (fault := _fill_unwritten(result, each, program, n_blocks)):
                    return fault
                if difference := comparison.difference(result, each):
                    return f"{kind}: {difference}"
        return ""

    return find_difference


def _fill_unwritten(
    output: Array, expected: comparison.Expected, program: Program, n_blocks: int
) -> str:
    """Store what blocks that were not run would have; return what is wrong with the others.

    The first block writes the first element and the last one the last, and all some elements.
    """
    (kernel,) = program.kernels
    spoiled = checks.spoiled((), str(output.dtype))
    # Of floats, bfloat16 among them, it is NaN.
    unwritten = np.isnan(output) if np.isnan(spoiled) else output == spoiled
    share = min(n_blocks / kernel.n_blocks, 1.0)
    if unwritten.flat[0] or unwritten.flat[-1] or 1 - unwritten.mean() < share / 2:
        return f"{n_blocks} of {kernel.n_blocks} blocks left elements unwritten"
    output[unwritten] = expected.values[unwritten]
    return ""


def broken(program: Program, old: str, new: str, number: int = 0) -> Program:
    """Return a program one of whose kernels has an error, and another name than the right one."""
    kernels = list(program.kernels)
    kernel = kernels[number]
    assert old in kernel.source
    name = f"broken_{abs(hash((old, new)))}"
    source = kernel.source.replace(old, new).replace(kernel.name, name)
    kernels[number] = replace(kernel, name=name, source=source)
    return replace(program, kernels=tuple(kernels))


@lru_cache(maxsize=2)
def _reference(ir: bytes, kind: InputKind) -> bytes:
    return reference.reference(ReferenceRequest(ir, SPEC, kind, 0))


def workload(arguments: Sequence[Any]) -> bytes:
    """Return the IR of a workload that is given by its tensors, the output last."""
    return workloads.dump(workloads.as_workload(te.create_prim_func(list(arguments))))


def match(template: Any, ir: bytes) -> Any:
    """Return the parts that a template needs of a workload, which it has to fit."""
    matched = template.find(workloads.load(ir)["main"])
    assert matched is not None
    return matched


def product(
    shape: tuple[int, int, int, int],
    dtype: str = "float16",
    *,
    transposed: bool = False,
    before: Callable[[Any], Any] | None = None,
    after: Callable[[Any], Any] | None = None,
    out_dtype: str = "",
) -> bytes:
    """Return products of matrices with a bias and what surrounds them.

    Args:
        shape: Products, rows, columns, and steps.
        dtype: Type of the operands.
        transposed: True if the second operand has its columns first.
        before: Function of an element of the first operand.
        after: Function of an element of the sums with their bias.
        out_dtype: Type of the output; that of the operands if empty.
    """
    n_batches, n_rows, n_columns, n_steps = shape
    total = "int32" if dtype == "int8" else "float32"
    first = te.placeholder((n_batches, n_rows, n_steps), dtype, name="first")
    sizes = (n_columns, n_steps) if transposed else (n_steps, n_columns)
    second = te.placeholder((n_batches, *sizes), dtype, name="second")
    bias = te.placeholder((n_columns,), total if dtype == "int8" else dtype, name="bias")
    step = te.reduce_axis((0, n_steps), name="step")
    data = first
    if before is not None:
        data = te.compute(first.shape, lambda *at: before(first[at]), name="before")

    def multiplied(b: Any, i: Any, j: Any) -> Any:
        at = (b, j, step) if transposed else (b, step, j)
        return te.sum(data[b, i, step].astype(total) * second[at].astype(total), axis=step)

    sums = te.compute((n_batches, n_rows, n_columns), multiplied, name="sums")
    function = after or (lambda value: value)
    dtype = out_dtype or ("int32" if dtype == "int8" else dtype)
    rounded = dtype if dtype in ("float16", "bfloat16") else total
    added = te.compute(
        sums.shape,
        lambda b, i, j: sums[b, i, j].astype(rounded) + bias[j].astype(rounded),
        name="added",
    )
    output = te.compute(sums.shape, lambda *at: function(added[at]).astype(dtype), name="output")
    return workload([first, second, bias, output])


def gated(shape: tuple[int, int, int], dtype: str = "float16") -> bytes:
    """Return two products of the same rows, of which one gates the other.

    Args:
        shape: Rows, columns, and steps.
        dtype: Type of the operands.
    """
    n_rows, n_columns, n_steps = shape
    first = te.placeholder((n_rows, n_steps), dtype, name="first")
    weights = [te.placeholder((n_columns, n_steps), dtype, name=name) for name in ("gate", "up")]

    def multiplied(weight: Any) -> Any:
        step = te.reduce_axis((0, n_steps), name="step")
        return te.compute(
            (n_rows, n_columns),
            lambda i, j: te.sum(
                first[i, step].astype("float32") * weight[j, step].astype("float32"), axis=step
            ),
            name=f"{weight.op.name}_sums",
        )

    gate, up = map(multiplied, weights)
    output = te.compute(
        (n_rows, n_columns),
        lambda i, j: (gate[i, j] * tvm.tirx.sigmoid(gate[i, j]) * up[i, j]).astype(dtype),
        name="output",
    )
    return workload([first, *weights, output])


def branches(size: int, channels: tuple[int, int, int]) -> bytes:
    """Return the sum of two convolutions of one tap, of which the second one has strides.

    Args:
        size: Height and width of the output.
        channels: Channels of the first and of the second image, and of the output.
    """
    dtype, (*n_inputs, n_out) = "float16", channels
    images, weights, sums = [], [], []
    for number, (n_in, stride) in enumerate(zip(n_inputs, (1, 2), strict=True)):
        shape = (1, stride * size, stride * size, n_in)
        images.append(te.placeholder(shape, dtype, name=f"image{number}"))
        weights.append(te.placeholder((n_out, n_in), dtype, name=f"weight{number}"))
        sums.append(_pointwise(images[-1], weights[-1], stride))
    output = te.compute(
        sums[0].shape,
        lambda *at: tvm.tirx.max(sums[0][at] + sums[1][at], 0.0).astype(dtype),
        name="output",
    )
    return workload([*images, *weights, output])


def _pointwise(image: Any, weight: Any, stride: int) -> Any:
    channel = te.reduce_axis((0, weight.shape[1]), name="channel")
    size = int(image.shape[1]) // stride
    return te.compute(
        (1, size, size, weight.shape[0]),
        lambda n, h, w, o: te.sum(
            image[n, h * stride, w * stride, channel].astype("float32")
            * weight[o, channel].astype("float32"),
            axis=channel,
        ),
        name=f"{image.op.name}_sums",
    )


def convolution(
    size: int,
    channels: tuple[int, int],
    window: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> bytes:
    """Return a convolution of a square image, channels last, with padding and a residual."""
    (n_in, n_out), dtype = channels, "float16"
    data = te.placeholder((2, size, size, n_in), dtype, name="data")
    weight = te.placeholder((n_out, window, window, n_in // groups), dtype, name="weight")
    padding = dilation * (window - 1) // 2
    out = (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1
    residual = te.placeholder((2, out, out, n_out), dtype, name="residual")
    padded = te.compute(
        (2, size + 2 * padding, size + 2 * padding, n_in),
        lambda n, h, w, c: tvm.tirx.if_then_else(
            tvm.tirx.all(h >= padding, h < size + padding, w >= padding, w < size + padding),
            data[n, h - padding, w - padding, c],
            tvm.tirx.const(0, dtype),
        ),
        name="padded",
    )
    r, s, c = (
        te.reduce_axis((0, n), name=name)
        for n, name in ((window, "r"), (window, "s"), (n_in // groups, "c"))
    )

    def summed(n: Any, h: Any, w: Any, o: Any) -> Any:
        group = o // (n_out // groups) * (n_in // groups) if groups > 1 else 0
        read = padded[n, h * stride + r * dilation, w * stride + s * dilation, group + c]
        return te.sum(read.astype("float32") * weight[o, r, s, c].astype("float32"), [r, s, c])

    sums = te.compute((2, out, out, n_out), summed, name="sums")
    output = te.compute(
        sums.shape,
        lambda *at: tvm.tirx.max(sums[at].astype(dtype) + residual[at], tvm.tirx.const(0, dtype)),
        name="output",
    )
    return workload([data, weight, residual, output])


def attention(
    heads: tuple[int, int],
    sizes: tuple[int, int, int],
    dtype: str = "float16",
    *,
    changed: Callable[[Any, Any, Any], Any] | None = None,
    softmax: Callable[[Any], Any] = topi.nn.softmax,
) -> bytes:
    """Return an attention whose queries, keys and values are parts of one tensor.

    Args:
        heads: Heads of queries, and of keys and values.
        sizes: Rows, keys, and numbers of a query.
        dtype: Type of the operands.
        changed: Function of a score, its row and its key.
        softmax: Definition of the softmax.
    """
    (n_heads, n_shared), (n_rows, n_keys, width) = heads, sizes
    queries = te.placeholder((n_rows, n_heads * width), dtype, name="queries")
    cache = te.placeholder((2, n_keys, n_shared, width), dtype, name="cache")
    term, at = te.reduce_axis((0, width), name="term"), te.reduce_axis((0, n_keys), name="at")
    shared = n_heads // n_shared
    scores = te.compute(
        (n_heads, n_rows, n_keys),
        lambda h, i, j: te.sum(
            queries[i, h * width + term].astype("float32")
            * cache[0, j, h // shared, term].astype("float32"),
            axis=term,
        ),
        name="scores",
    )
    function = changed or (lambda value, _row, _key: value)
    logits = te.compute(
        scores.shape,
        lambda h, i, j: function(scores[h, i, j] * tvm.tirx.const(0.25, "float32"), i, j),
        name="logits",
    )
    weights = softmax(logits)
    narrow = te.compute(scores.shape, lambda *i: weights[i].astype(dtype), name="narrow")
    context = te.compute(
        (n_heads, n_rows, width),
        lambda h, i, d: te.sum(
            narrow[h, i, at].astype("float32") * cache[1, at, h // shared, d].astype("float32"),
            axis=at,
        ),
        name="context",
    )
    output = te.compute(
        (n_rows, n_heads * width),
        lambda i, x: context[x // width, i, x % width].astype(dtype),
        name="output",
    )
    return workload([queries, cache, output])
