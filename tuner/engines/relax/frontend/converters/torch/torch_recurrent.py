"""Converters of recurrent layers of torch, which TVM and torch unroll into every step."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import relax

from tuner.engines.relax.frontend.converters.recurrent.converters import run_layer
from tuner.engines.relax.frontend.converters.recurrent.recurrent_layers import (
    joined,
    read_layer,
    stacked,
)
from tuner.engines.relax.frontend.converters.torch.torch_functions import operands_of
from tuner.engines.relax.ir.tensor_types import shape_of

_NAMES = (
    *("hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional"),
    "batch_first",
)
# Gates of ONNX as positions of those of torch.
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
# Of one direction: weights of the input and of the state; with biases twice as many.
_N_WEIGHTS = 2


def has_projections(node: Any) -> bool:
    """Return whether a node is an LSTM whose states are projected, which ONNX has none of."""
    if str(node.target) != "aten.lstm.input":
        return False
    state, memory = (each.meta["val"] for each in node.args[1])
    return bool(state.shape[-1] != memory.shape[-1])


def _converter(kind: str, activation: str = "") -> Callable[[Any, Any], relax.Expr]:
    """Return the converter of a stack of layers; ``activation`` is that of a plain layer."""

    def convert(node: Any, importer: Any) -> relax.Expr:
        if has_projections(node):
            raise NotImplementedError("an LSTM with projections, which torch did not decompose")
        builder, given = importer.block_builder, operands_of(node, *_NAMES)
        emit, ordered = builder.emit, partial(_ordered, builder, gates=_GATES[kind])
        n_directions = 2 if given["bidirectional"] else 1
        n_params = _N_WEIGHTS * (2 if given["has_biases"] else 1)
        params = [importer.env[each] for each in given["params"]]
        states = given["hx"] if kind == "LSTM" else [given["hx"]]
        states = [importer.env[each] for each in states]
        data = importer.env[node.args[0]]
        if given["batch_first"]:
            data = emit(relax.op.permute_dims(data, [1, 0, 2]))
        lasts = []
        for number in range(given["num_layers"]):
            first = number * n_directions
            of_layer = params[first * n_params : (first + n_directions) * n_params]
            slots = [
                stacked(builder, [*map(ordered, of_layer[i::n_params])], 0) for i in range(n_params)
            ]
            biases = emit(relax.op.concat(slots[2:], 1)) if given["has_biases"] else None
            begins = [_rows(builder, each, first, n_directions) for each in states]
            attrs = {
                "direction": "bidirectional" if n_directions > 1 else "forward",
                "hidden_size": shape_of(states[0])[-1],
                "linear_before_reset": 1,
                "activations": [activation] * n_directions if activation else [],
            }
            inputs = [data, *slots[:2], biases, None, *begins, *[None] * (3 - len(begins))]
            outputs = run_layer(builder, read_layer(kind, inputs, attrs))
            n_steps, _, batch, hidden = shape_of(outputs[0])
            by_step = emit(relax.op.permute_dims(outputs[0], [0, 2, 1, 3]))
            data = emit(relax.op.reshape(by_step, (n_steps, batch, n_directions * hidden)))
            lasts.append(outputs[1:])
        if given["batch_first"]:
            data = emit(relax.op.permute_dims(data, [1, 0, 2]))
        ends = [joined(builder, of_state) for of_state in zip(*lasts, strict=True)]
        return emit(relax.Tuple([data, *ends]))

    return convert


def _ordered(builder: relax.BlockBuilder, param: Any, gates: Sequence[int]) -> Any:
    """Return a parameter whose rows, a part for each gate, are in the order of ONNX."""
    if len(gates) == 1:
        return param
    size = shape_of(param)[0] // len(gates)
    return joined(builder, [_rows(builder, param, gate * size, size) for gate in gates])


def _rows(builder: relax.BlockBuilder, value: Any, first: int, n: int) -> Any:
    return builder.emit(relax.op.strided_slice(value, [0], [first], [first + n]))


CONVERTERS = {
    "lstm.input": _converter("LSTM"),
    "gru.input": _converter("GRU"),
    "rnn_tanh.input": _converter("RNN", "Tanh"),
    "rnn_relu.input": _converter("RNN", "Relu"),
}
