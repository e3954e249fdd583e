"""Recurrent layers as ONNX describes them: cells, attributes, inputs and the products of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst

from tuner.engines.relax.frontend.converters.operands import as_text
from tuner.engines.relax.frontend.converters.recurrent.activations import (
    Activation,
    read_activations,
)

Tensors = Sequence[Any]


@dataclass(frozen=True)
class Step:
    """Attributes of a layer that change its step."""

    hidden: int
    clip: float | None
    linear_before_reset: bool
    input_forget: bool


@dataclass(frozen=True)
class Cell:
    """A kind of layer.

    Attributes:
        activations: Default activations of one direction.
        n_states: Number of states that a step takes and returns.
        compute: Function of the step, the activations, the input projections of all steps, the
            number of the row, or else those of the step and None, the states, the other tensors by
            name, and True for the reverse direction, to the new states.
    """

    activations: tuple[str, ...]
    n_states: int
    compute: Callable[
        [Step, Sequence[Activation], Tensors, Mapping[str, te.Tensor], bool], list[te.Tensor]
    ]


def _product(state: te.Tensor, weight: te.Tensor, first: int, n: int, name: str) -> te.Tensor:
    """Multiply a state with columns ``first`` to ``first + n`` of a weight."""
    k = te.reduce_axis((0, state.shape[1]), f"{name}_k")
    dtype = str(state.dtype)
    is_half = dtype in ("float16", "bfloat16")

    def at(b: Any, j: Any) -> Any:
        factors = state[b, k], weight[k, first + j]
        if is_half:
            factors = tuple(factor.astype("float32") for factor in factors)
        return te.sum(factors[0] * factors[1], axis=k)

    product = te.compute((state.shape[0], n), at, name)
    return topi.cast(product, dtype) if is_half else product


def _kept(product: te.Tensor, bias: te.Tensor | None) -> te.Tensor:
    """Return a product with its bias as a tensor that TVM's rules do not dissolve.

    They fail on a product that one block alone reads, at several places.
    """
    return te.compute(
        product.shape,
        lambda b, j: product[b, j] if bias is None else product[b, j] + bias[j],
        "sums",
        attrs={"meta_schedule.inline_rule": "disable"},
    )


class _Inputs:
    """Input projections of a step, and the validity of the step for each sequence."""

    def __init__(self, tensors: Tensors, others: Mapping[str, te.Tensor], is_reverse: bool) -> None:
        self._projected, self._row = tensors[0], tensors[1]
        self._lengths = others.get("lengths")
        self._is_reverse = is_reverse

    def __call__(self, b: Any, column: Any) -> Any:
        if self._row is None:
            return self._projected[b, column]
        row = self._row[()]
        if self._lengths is not None and self._is_reverse:
            n_rows = tirx.const(int(self._projected.shape[0]), "int64")
            length = te.min(self._lengths[b].astype("int64"), n_rows)
            row = te.if_then_else(row < length, length - 1 - row, row)
        return self._projected[row, b, column]

    def keep(self, b: Any, new: Any, old: Any) -> Any:
        """Return the new state, or the old one behind the end of a sequence."""
        if self._row is None or self._lengths is None:
            return new
        return te.if_then_else(self._row[()] < self._lengths[b].astype("int64"), new, old)


def _clipped(step: Step, value: Any) -> Any:
    if step.clip is None:
        return value
    bound = tirx.const(step.clip, value.ty.dtype)
    return te.max(te.min(value, bound), -bound)


def _rnn(
    step: Step,
    functions: Sequence[Activation],
    tensors: Tensors,
    others: Mapping[str, te.Tensor],
    is_reverse: bool,
) -> list[te.Tensor]:
    inputs, state = _Inputs(tensors, others, is_reverse), tensors[2]
    product = _product(state, others["weight"], 0, step.hidden, "product")

    def new(b: Any, j: Any) -> Any:
        value = functions[0](_clipped(step, product[b, j] + inputs(b, j)))
        return inputs.keep(b, value, state[b, j])

    return [te.compute(state.shape, new, "state")]


def _gru(
    step: Step,
    functions: Sequence[Activation],
    tensors: Tensors,
    others: Mapping[str, te.Tensor],
    is_reverse: bool,
) -> list[te.Tensor]:
    inputs, state, size = _Inputs(tensors, others, is_reverse), tensors[2], step.hidden
    weight, bias = others["weight"], others.get("bias")
    n_first = 3 * size if step.linear_before_reset else 2 * size
    product = _kept(_product(state, weight, 0, n_first, "product"), bias)

    def gate(index: int, b: Any, j: Any) -> Any:
        value = product[b, index * size + j] + inputs(b, index * size + j)
        return functions[0](_clipped(step, value))

    if step.linear_before_reset:

        def hidden(b: Any, j: Any) -> Any:
            return gate(1, b, j) * product[b, 2 * size + j]
    else:
        reset = te.compute(state.shape, lambda b, j: gate(1, b, j) * state[b, j], "reset")
        second = _product(reset, weight, 2 * size, size, "second")

        def hidden(b: Any, j: Any) -> Any:
            return second[b, j]

    def new(b: Any, j: Any) -> Any:
        candidate = functions[1](_clipped(step, hidden(b, j) + inputs(b, 2 * size + j)))
        update = gate(0, b, j)
        value = (1 - update) * candidate + update * state[b, j]
        return inputs.keep(b, value, state[b, j])

    return [te.compute(state.shape, new, "state")]


def _lstm(
    step: Step,
    functions: Sequence[Activation],
    tensors: Tensors,
    others: Mapping[str, te.Tensor],
    is_reverse: bool,
) -> list[te.Tensor]:
    inputs, state, memory, size = _Inputs(tensors, others, is_reverse), *tensors[2:4], step.hidden
    peepholes = others.get("peepholes")
    product = _product(state, others["weight"], 0, 4 * size, "product")

    def gate(index: int, b: Any, j: Any, seen: Any = None) -> Any:
        value = product[b, index * size + j] + inputs(b, index * size + j)
        if peepholes is not None and seen is not None:
            value += peepholes[index * size + j] * seen
        return functions[1 if index == 3 else 0](_clipped(step, value))

    def new_memory(b: Any, j: Any) -> Any:
        entered = gate(0, b, j, memory[b, j])
        kept = 1 - entered if step.input_forget else gate(2, b, j, memory[b, j])
        value = kept * memory[b, j] + entered * gate(3, b, j)
        return inputs.keep(b, value, memory[b, j])

    after = te.compute(memory.shape, new_memory, "memory")

    def new_state(b: Any, j: Any) -> Any:
        value = gate(1, b, j, after[b, j]) * functions[2](after[b, j])
        return inputs.keep(b, value, state[b, j])

    return [te.compute(state.shape, new_state, "state"), after]


CELLS = {
    "RNN": Cell(("Tanh",), 1, _rnn),
    "GRU": Cell(("Sigmoid", "Tanh"), 1, _gru),
    "LSTM": Cell(("Sigmoid", "Tanh", "Tanh"), 2, _lstm),
}


@dataclass(frozen=True)
class Layer:
    """The attributes of a layer, and its inputs in the order of ONNX, the data with steps first."""

    kind: str
    hidden: int
    directions: tuple[str, ...]
    activations: tuple[tuple[Activation, ...], ...]
    step: Step
    inputs: tuple[relax.Expr | None, ...]

    @property
    def data(self) -> Any:
        """Input of all steps, shape (steps, batch, size)."""
        return self.inputs[0]

    @property
    def cell(self) -> Cell:
        """Definition of a step."""
        return CELLS[self.kind]

    def of_direction(self, builder: relax.BlockBuilder, index: int, slot: int) -> Any:
        """Return the part of an input for one direction; None without that input."""
        value = self.inputs[slot] if slot < len(self.inputs) else None
        if value is None:
            return None
        if isinstance(value, GenericConst):
            return relax.const(value.value.numpy()[index])
        part = relax.op.strided_slice(value, axes=[0], begin=[index], end=[index + 1])
        return builder.emit(relax.op.squeeze(builder.emit(part), axis=[0]))

    def step_inputs(
        self, builder: relax.BlockBuilder, index: int, bias: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the states before the first step of a direction, and its other tensors by name.

        Args:
            builder: Builder of the network.
            index: Number of the direction.
            bias: Bias inside a product of the step; None without one.
        """
        shape = (int(self.data.ty.shape[1]), self.hidden)
        zero = relax.const(np.zeros(shape, str(self.data.ty.dtype)))
        given = [self.of_direction(builder, index, slot) for slot in (5, 6)[: self.cell.n_states]]
        weight = self.of_direction(builder, index, 2)
        others = {
            "weight": builder.emit(relax.op.permute_dims(weight, [1, 0])),
            "bias": bias,
            "peepholes": self.of_direction(builder, index, 7) if self.kind == "LSTM" else None,
        }
        return (
            [zero if state is None else state for state in given],
            {name: value for name, value in others.items() if value is not None},
        )


def read_layer(kind: str, inputs: list[Any], attrs: dict[str, Any]) -> Layer:
    """Read the attributes of ``RNN``, ``GRU`` or ``LSTM``.

    Args:
        kind: Name of the operator.
        inputs: Its inputs, the data with the steps first; None for those that are left out.
        attrs: Its attributes.
    """
    direction = as_text(attrs.get("direction", b"forward"))
    directions = ("forward", "reverse") if direction == "bidirectional" else (direction,)
    step = Step(
        hidden=int(attrs["hidden_size"]),
        clip=float(attrs["clip"]) if attrs.get("clip") else None,
        linear_before_reset=bool(attrs.get("linear_before_reset", 0)),
        input_forget=bool(attrs.get("input_forget", 0)),
    )
    return Layer(
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


def project(
    builder: relax.BlockBuilder, layer: Layer, indices: Sequence[int]
) -> tuple[relax.Expr, list[relax.Expr | None]]:
    """Multiply all inputs with the input weights, and add what biases can be added beforehand.

    Args:
        builder: Builder of the network.
        layer: The layer.
        indices: Numbers of the directions.

    Returns:
        Array of shape (steps, batch, directions * gates * hidden), and for each direction the bias
        that is inside a product of the step, of shape (gates * hidden,), if there is one.
    """
    n_steps, batch, size = (int(dim) for dim in layer.data.ty.shape)
    weights = [layer.of_direction(builder, index, 1) for index in indices]
    n_outputs = int(weights[0].ty.shape[0])
    rows = builder.emit(relax.op.reshape(layer.data, (n_steps * batch, size)))
    transposed = builder.emit(relax.op.permute_dims(joined(builder, weights), [1, 0]))
    value = builder.emit(relax.op.matmul(rows, transposed))
    inside: list[relax.Expr | None] = [None for _ in indices]
    biases = [layer.of_direction(builder, index, 3) for index in indices]
    if biases[0] is not None:
        added, behind = (
            joined(builder, [_part(builder, bias, half * n_outputs, n_outputs) for bias in biases])
            for half in range(2)
        )
        if layer.kind == "GRU" and layer.step.linear_before_reset:
            inside = [_part(builder, behind, i * n_outputs, n_outputs) for i in range(len(indices))]
        else:
            added = builder.emit(relax.op.add(added, behind))
        value = builder.emit(relax.op.add(value, added))
    shape = (n_steps, batch, len(indices) * n_outputs)
    return builder.emit(relax.op.reshape(value, shape)), inside


def _part(builder: relax.BlockBuilder, vector: relax.Expr, first: int, n: int) -> relax.Expr:
    if isinstance(vector, GenericConst):
        return relax.const(vector.value.numpy()[first : first + n])
    return builder.emit(relax.op.strided_slice(vector, [0], [first], [first + n]))


def joined(builder: relax.BlockBuilder, parts: Sequence[relax.Expr]) -> relax.Expr:
    """Concatenate parts along the first axis."""
    if all(isinstance(part, GenericConst) for part in parts):
        return relax.const(np.concatenate([part.value.numpy() for part in parts]))
    return builder.emit(relax.op.concat(list(parts), 0)) if len(parts) > 1 else parts[0]


def stacked(builder: relax.BlockBuilder, parts: Sequence[relax.Expr], axis: int) -> relax.Expr:
    """Stack the parts of all directions along a new axis."""
    expanded = [builder.emit(relax.op.expand_dims(part, axis)) for part in parts]
    return builder.emit(relax.op.concat(expanded, axis)) if len(parts) > 1 else expanded[0]
