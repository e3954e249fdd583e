"""Converters of recurrent layers of torch, which TVM and torch unroll into every step."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import relax

from tuner.engines.relax.frontend.converters.recurrent.converters import run_layer
from tuner.engines.relax.frontend.converters.recurrent.recurrent_layers import read_layer
from tuner.engines.relax.ir.tensor_types import shape_of

_NAMES = ("hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional")
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
        emit = importer.block_builder.emit
        ordered = partial(_ordered, gates=_GATES[kind], emit=emit)
        names = (*_NAMES, "batch_first")
        given = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
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
                _stacked([*map(ordered, of_layer[i::n_params])], emit) for i in range(n_params)
            ]
            biases = emit(relax.op.concat(slots[2:], 1)) if given["has_biases"] else None
            begins = [_rows(each, first, n_directions, emit) for each in states]
            attrs = {
                "direction": "bidirectional" if n_directions > 1 else "forward",
                "hidden_size": shape_of(states[0])[-1],
                "linear_before_reset": 1,
                "activations": [activation] * n_directions if activation else [],
            }
            inputs = [data, *slots[:2], biases, None, *begins, *[None] * (3 - len(begins))]
            outputs = run_layer(importer.block_builder, read_layer(kind, inputs, attrs))
            n_steps, _, batch, hidden = shape_of(outputs[0])
            by_step = emit(relax.op.permute_dims(outputs[0], [0, 2, 1, 3]))
            data = emit(relax.op.reshape(by_step, (n_steps, batch, n_directions * hidden)))
            lasts.append(outputs[1:])
        if given["batch_first"]:
            data = emit(relax.op.permute_dims(data, [1, 0, 2]))
        ends = [_joined(of_state, 0, emit) for of_state in zip(*lasts, strict=True)]
        return emit(relax.Tuple([data, *ends]))

    return convert


def _ordered(param: Any, gates: Sequence[int], emit: Callable[[relax.Expr], Any]) -> Any:
    """Return a parameter whose rows, a part for each gate, are in the order of ONNX."""
    size = shape_of(param)[0] // len(gates)
    if len(gates) == 1:
        return param
    return _joined([_rows(param, gate * size, size, emit) for gate in gates], 0, emit)


def _rows(value: Any, first: int, n: int, emit: Callable[[relax.Expr], Any]) -> Any:
    return emit(relax.op.strided_slice(value, [0], [first], [first + n]))


def _joined(parts: Sequence[Any], axis: int, emit: Callable[[relax.Expr], Any]) -> Any:
    return emit(relax.op.concat([*parts], axis)) if len(parts) > 1 else parts[0]


def _stacked(parts: Sequence[Any], emit: Callable[[relax.Expr], Any]) -> Any:
    """Return the parameters of all directions along a new first axis."""
    return _joined([emit(relax.op.expand_dims(part, 0)) for part in parts], 0, emit)


CONVERTERS = {
    "lstm.input": _converter("LSTM"),
    "gru.input": _converter("GRU"),
    "rnn_tanh.input": _converter("RNN", "Tanh"),
    "rnn_relu.input": _converter("RNN", "Relu"),
}
