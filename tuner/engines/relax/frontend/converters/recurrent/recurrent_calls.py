"""Recurrent layers as a call of one kernel for each step, for GPUs.

All steps of both directions call the same kernel, which takes the number of the step as an
argument: it is one task, whose weight is the number of steps.
"""

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from tuner.engines.relax.frontend.converters.recurrent.recurrent_layers import (
    Layer,
    project,
    stacked,
)

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
