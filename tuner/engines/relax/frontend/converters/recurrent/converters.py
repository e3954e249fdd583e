"""Converters of RNN, GRU and LSTM: one product for all inputs, then the steps."""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.ir import GenericConst
from tvm.target import Target
from tvm.tirx import PrimFunc
from tvm_ffi import structural_equal

from tuner.engines.relax.frontend.converters.recurrent.recurrent_layers import (
    Layer,
    project,
    read_layer,
    stacked,
)
from tuner.engines.relax.graph.definitions.step_loops import StepLoop, are_serial, marked
from tuner.engines.relax.target.kinds import is_cpu

# A concatenation of more tensors is done in two levels: each element tests all of its parts.
_MAX_PARTS = 16


def call_steps(builder: relax.BlockBuilder, layer: Layer) -> list[relax.Expr]:
    """Return the outputs in the order of ONNX: all states, then the last ones."""
    ends: list[list[relax.Expr]] = []
    sequences = []
    for index in range(len(layer.directions)):
        sequence, states = _run(builder, layer, index)
        sequences.append(sequence)
        ends.append(states)
    lasts = [stacked(builder, states, 0) for states in zip(*ends, strict=True)]
    return [stacked(builder, sequences, 1), *lasts]


def _run(
    builder: relax.BlockBuilder, layer: Layer, index: int
) -> tuple[relax.Expr, list[relax.Expr]]:
    """Run one direction; return the states of all steps (steps, batch, hidden), and the last."""
    n_steps, batch, _ = (int(dim) for dim in layer.data.ty.shape)
    dtype = str(layer.data.ty.dtype)
    cell = layer.cell
    is_reverse = layer.directions[index] == "reverse"
    projected, (bias,) = project(builder, layer, [index])
    lengths = layer.inputs[4]
    states, given = layer.step_inputs(builder, index, bias)
    if lengths is not None:
        given["lengths"] = lengths
    arguments = [projected, relax.const(0, "int64"), *states, *given.values()]
    tensors = [
        te.placeholder([int(dim) for dim in argument.ty.shape], str(argument.ty.dtype), f"a{i}")
        for i, argument in enumerate(arguments)
    ]
    named = dict(zip(given, tensors[2 + cell.n_states :], strict=True))
    results = cell.compute(
        layer.step, layer.activations[index], tensors[: 2 + cell.n_states], named, is_reverse
    )
    definition = te.create_prim_func([*tensors, *results]).without_attr("global_symbol")
    kernel = builder.add_func(definition, f"{layer.kind.lower()}_step")
    kinds = [relax.TensorType((batch, layer.hidden), dtype)] * cell.n_states
    sequence = []
    for step in range(n_steps):
        row = n_steps - 1 - step if is_reverse and lengths is None else step
        call = relax.call_tir(
            kernel,
            [projected, relax.const(row, "int64"), *states, *given.values()],
            kinds if cell.n_states > 1 else kinds[0],
        )
        result = builder.emit(call)
        states = (
            [builder.emit(relax.TupleGetItem(result, i)) for i in range(cell.n_states)]
            if cell.n_states > 1
            else [result]
        )
        sequence.append(states[0])
    if is_reverse and lengths is None:
        sequence.reverse()
    stacked = builder.emit(
        relax.op.reshape(_concatenate(builder, sequence), (n_steps, batch, layer.hidden))
    )
    if lengths is not None:
        stacked = builder.emit(builder.call_te(_cut(is_reverse), stacked, lengths))
    return stacked, states


def _concatenate(builder: Any, parts: list[relax.Expr]) -> relax.Expr:
    """Concatenate tensors along the first axis."""
    while len(parts) > 1:
        groups = [parts[i : i + _MAX_PARTS] for i in range(0, len(parts), _MAX_PARTS)]
        parts = [
            builder.emit(relax.op.concat(group, 0)) if len(group) > 1 else group[0]
            for group in groups
        ]
    return parts[0]


def _cut(is_reverse: bool) -> Callable[[te.Tensor, te.Tensor], te.Tensor]:
    """Return the definition that orders states by time and clears those behind the lengths."""

    def cut(states: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def at(t: Any, b: Any, j: Any) -> Any:
            length = te.min(lengths[b].astype("int64"), tirx.const(int(states.shape[0]), "int64"))
            t = t.astype("int64")
            row = te.if_then_else(t < length, length - 1 - t, t) if is_reverse else t
            zero = states[t, b, j] * 0
            return te.if_then_else(t < length, states[row, b, j], zero)

        return te.compute(states.shape, at, "cut")

    return cut


def converter_of(kind: str) -> Callable[[Any, Any, dict[str, Any], int], relax.Expr]:
    """Return the converter of ``RNN``, ``GRU`` or ``LSTM``."""

    def convert(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
        del opset
        batch_first = bool(attrs.get("layout", 0))
        states = (5, 6) if kind == "LSTM" else (5,)
        # An input may be an expression that no variable holds yet, and is used more than once.
        values = [_bound(builder, value) for value in inputs]
        values += [None] * (8 - len(values))
        if batch_first:
            for slot in (0, *states):
                if values[slot] is not None:
                    values[slot] = builder.emit(relax.op.permute_dims(values[slot], [1, 0, 2]))
        outputs = run_layer(builder, read_layer(kind, values, attrs))
        if batch_first:
            orders = [[2, 0, 1, 3], *[[1, 0, 2]] * len(states)]
            outputs = [
                builder.emit(relax.op.permute_dims(output, order))
                for output, order in zip(outputs, orders, strict=True)
            ]
        return relax.Tuple(outputs)

    return convert


def run_layer(builder: relax.BlockBuilder, layer: Layer) -> list[relax.Expr]:
    """Return the outputs of a layer in the order of ONNX: all states, then the last ones."""
    target = Target.current(allow_none=True)
    # A loop can call kernels on a CPU.
    if target is not None and is_cpu(target) and _depends_on_data(builder, layer.inputs):
        return loop_steps(builder, layer, target)
    return call_steps(builder, layer)


def _depends_on_data(builder: Any, values: Sequence[relax.Expr | None]) -> bool:
    """Return whether an input of the network leads to a value; TVM folds the kernels of others."""
    waiting = [value for value in values if value is not None]
    seen: set[relax.Var] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, relax.Var):
            if value in seen:
                continue
            seen.add(value)
            bound = builder.lookup_binding(value)
            if bound is None:
                return True
            waiting.append(bound)
        waiting += [*getattr(value, "args", ()), *getattr(value, "fields", ())]
        if isinstance(value, relax.TupleGetItem):
            waiting.append(value.tuple_value)
    return False


def _bound(builder: Any, value: Any) -> Any:
    return value if value is None or isinstance(value, GenericConst) else builder.emit(value)


def loop_steps(builder: relax.BlockBuilder, layer: Layer, target: Target) -> list[relax.Expr]:
    """Return the outputs in the order of ONNX: all states, then the last ones.

    Args:
        builder: Builder of the network.
        layer: The layer.
        target: Target for a CPU.
    """
    n_directions = len(layer.directions)
    projected, biases = project(builder, layer, range(n_directions))
    arguments, steps = [projected], []
    for index in range(n_directions):
        states, others = layer.step_inputs(builder, index, biases[index])
        steps.append(_define_step(layer, index, projected, states, others))
        arguments += [*states, *others.values()]
    lengths = layer.inputs[4]
    is_serial = are_serial(steps, target)
    has_threads = int(target.attrs.get("num-cores", 1)) > 1
    # Steps with other activations are other workloads, whose times do not add up in parallel.
    are_equal = all(structural_equal(steps[0], step) for step in steps)
    loop = StepLoop(
        steps=tuple(marked(step, is_serial=is_serial) for step in steps),
        n_steps=int(projected.ty.shape[0]),
        n_states=layer.cell.n_states,
        is_reversed=tuple(direction == "reverse" for direction in layer.directions),
        is_parallel=is_serial and has_threads and are_equal and n_directions > 1,
        has_lengths=lengths is not None,
    )
    arguments += [] if lengths is None else [lengths]
    inputs = [([int(size) for size in each.ty.shape], str(each.ty.dtype)) for each in arguments]
    kernel = builder.add_func(loop.declare(inputs), f"{layer.kind.lower()}_loop")
    kinds = [relax.TensorType(shape, dtype) for shape, dtype in loop.outputs]
    result = builder.emit(relax.call_tir(kernel, arguments, kinds))
    return [builder.emit(relax.TupleGetItem(result, i)) for i in range(len(kinds))]


def _define_step(
    layer: Layer, index: int, projected: relax.Expr, states: list[Any], others: dict[str, Any]
) -> PrimFunc:
    """Return the kernel of a step: a row of the products, states and others to new states."""
    _, batch, width = (int(size) for size in projected.ty.shape)
    row = te.placeholder(
        (batch, width // len(layer.directions)), str(projected.ty.dtype), "projected"
    )
    tensors = [
        te.placeholder([int(size) for size in each.ty.shape], str(each.ty.dtype), f"a{number}")
        for number, each in enumerate([*states, *others.values()])
    ]
    named = dict(zip(others, tensors[len(states) :], strict=True))
    results = layer.cell.compute(
        layer.step, layer.activations[index], [row, None, *tensors[: len(states)]], named, False
    )
    step = te.create_prim_func([row, *tensors, *results])
    return step.without_attr("global_symbol")
