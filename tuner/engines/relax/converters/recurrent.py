"""Converters of RNN, GRU and LSTM: one product for all inputs, then a call of one kernel a step.

All steps of both directions call the same kernel, which takes the number of the step as an
argument: it is one task, whose weight is the number of steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.ir import GenericConst

from tuner.engines.relax.converters.activations import Activation, read_activations
from tuner.engines.relax.converters.operands import as_text
from tuner.engines.relax.converters.recurrent_cells import CELLS, Step

# A concatenation of more tensors is done in two levels: each element tests all of its parts.
_MAX_PARTS = 16


@dataclass(frozen=True)
class _Layer:
    """The attributes of a layer, and its inputs other than the data, in ONNX's order."""

    kind: str
    hidden: int
    directions: tuple[str, ...]
    activations: tuple[tuple[Activation, ...], ...]
    step: Step
    inputs: tuple[relax.Expr | None, ...]

    def of_direction(self, builder: relax.BlockBuilder, index: int, slot: int) -> Any:
        """Return the part of an input for one direction; None without that input."""
        value = self.inputs[slot] if slot < len(self.inputs) else None
        if value is None:
            return None
        if isinstance(value, GenericConst):
            return relax.const(value.value.numpy()[index])
        part = relax.op.strided_slice(value, axes=[0], begin=[index], end=[index + 1])
        return builder.emit(relax.op.squeeze(builder.emit(part), axis=[0]))


def converter_of(kind: str) -> Callable[[Any, Any, dict[str, Any], int], relax.Expr]:
    """Return the converter of ``RNN``, ``GRU`` or ``LSTM``."""

    def convert(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
        del opset
        batch_first = bool(attrs.get("layout", 0))
        states = (5, 6) if kind == "LSTM" else (5,)
        # An input may be an expression that no variable holds yet, and is used more than once.
        values = [_bound(builder, value) for value in inputs]
        values += [None] * (8 - len(values))
        data = values[0]
        if batch_first:
            data = builder.emit(relax.op.permute_dims(data, [1, 0, 2]))
            for slot in states:
                if values[slot] is not None:
                    values[slot] = builder.emit(relax.op.permute_dims(values[slot], [1, 0, 2]))
        outputs = _convert_layer(builder, data, _read_layer(kind, values, attrs))
        if batch_first:
            orders = [[2, 0, 1, 3], *[[1, 0, 2]] * len(states)]
            outputs = [
                builder.emit(relax.op.permute_dims(output, order))
                for output, order in zip(outputs, orders, strict=True)
            ]
        return relax.Tuple(outputs)

    return convert


def _read_layer(kind: str, inputs: list[Any], attrs: dict[str, Any]) -> _Layer:
    direction = as_text(attrs.get("direction", b"forward"))
    directions = ("forward", "reverse") if direction == "bidirectional" else (direction,)
    step = Step(
        hidden=int(attrs["hidden_size"]),
        clip=float(attrs["clip"]) if attrs.get("clip") else None,
        linear_before_reset=bool(attrs.get("linear_before_reset", 0)),
        input_forget=bool(attrs.get("input_forget", 0)),
    )
    return _Layer(
        kind=kind,
        hidden=step.hidden,
        directions=directions,
        activations=read_activations(
            [as_text(name) for name in attrs.get("activations", ())] or None,
            CELLS[kind].activations,
            len(directions),
            (attrs.get("activation_alpha", ()), attrs.get("activation_beta", ())),
        ),
        step=step,
        inputs=tuple(inputs),
    )


def _convert_layer(builder: Any, data: relax.Expr, layer: _Layer) -> list[relax.Expr]:
    """Return the outputs in the order of ONNX: all states, then the last ones."""
    ends: list[list[relax.Expr]] = []
    sequences = []
    for index in range(len(layer.directions)):
        sequence, states = _run(builder, data, layer, index)
        sequences.append(sequence)
        ends.append(states)
    lasts = [_join(builder, states, 0) for states in zip(*ends, strict=True)]
    return [_join(builder, sequences, 1), *lasts]


def _join(builder: Any, parts: Sequence[relax.Expr], axis: int) -> relax.Expr:
    """Stack the directions along a new axis."""
    expanded = [builder.emit(relax.op.expand_dims(part, axis)) for part in parts]
    return builder.emit(relax.op.concat(expanded, axis)) if len(parts) > 1 else expanded[0]


def _run(
    builder: Any, data: relax.Expr, layer: _Layer, index: int
) -> tuple[relax.Expr, list[relax.Expr]]:
    """Run one direction; return the states of all steps (steps, batch, hidden), and the last."""
    n_steps, batch, _ = (int(dim) for dim in data.ty.shape)
    dtype = str(data.ty.dtype)
    cell = CELLS[layer.kind]
    is_reverse = layer.directions[index] == "reverse"
    projected, recurrent_bias = _project(builder, data, layer, index)
    weight = layer.of_direction(builder, index, 2)
    lengths = layer.inputs[4]
    zero = relax.const(np.zeros((batch, layer.hidden), dtype))
    given_states = [layer.of_direction(builder, index, slot) for slot in (5, 6)[: cell.n_states]]
    states = [zero if state is None else state for state in given_states]
    extra = {
        "weight": builder.emit(relax.op.permute_dims(weight, [1, 0])),
        "bias": recurrent_bias,
        "peepholes": layer.of_direction(builder, index, 7) if layer.kind == "LSTM" else None,
        "lengths": lengths,
    }
    given = {name: value for name, value in extra.items() if value is not None}
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


def _project(
    builder: Any, data: relax.Expr, layer: _Layer, index: int
) -> tuple[relax.Expr, relax.Expr | None]:
    """Multiply all inputs with the input weights, and add what biases can be added beforehand.

    Returns:
        Array of shape (steps, batch, gates * hidden), and the bias that is inside a product of the
        step, of shape (gates * hidden,), if there is one.
    """
    n_steps, batch, size = (int(dim) for dim in data.ty.shape)
    weight = layer.of_direction(builder, index, 1)
    n_outputs = int(weight.ty.shape[0])
    rows = builder.emit(relax.op.reshape(data, (n_steps * batch, size)))
    transposed = builder.emit(relax.op.permute_dims(weight, [1, 0]))
    value = builder.emit(relax.op.matmul(rows, transposed))
    bias = layer.of_direction(builder, index, 3)
    inside = None
    if bias is not None:
        halves = [
            builder.emit(relax.op.strided_slice(bias, [0], [n_outputs * i], [n_outputs * (i + 1)]))
            for i in range(2)
        ]
        if isinstance(bias, GenericConst):
            array = bias.value.numpy()
            halves = [relax.const(array[:n_outputs]), relax.const(array[n_outputs:])]
        if layer.kind == "GRU" and layer.step.linear_before_reset:
            value = builder.emit(relax.op.add(value, halves[0]))
            inside = halves[1]
        else:
            value = builder.emit(relax.op.add(value, builder.emit(relax.op.add(*halves))))
    return builder.emit(relax.op.reshape(value, (n_steps, batch, n_outputs))), inside


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
            length = lengths[b].astype("int64")
            t = t.astype("int64")
            row = te.if_then_else(t < length, length - 1 - t, t) if is_reverse else t
            zero = states[t, b, j] * 0
            return te.if_then_else(t < length, states[row, b, j], zero)

        return te.compute(states.shape, at, "cut")

    return cut


def _bound(builder: Any, value: Any) -> Any:
    return value if value is None or isinstance(value, GenericConst) else builder.emit(value)
