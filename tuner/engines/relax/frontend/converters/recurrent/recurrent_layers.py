"""Recurrent layers as ONNX describes them: attributes, inputs, and the products with all inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tuner.engines.relax.frontend.converters.operands import as_text
from tuner.engines.relax.frontend.converters.recurrent.activations import (
    Activation,
    read_activations,
)
from tuner.engines.relax.frontend.converters.recurrent.recurrent_cells import CELLS, Cell, Step


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
