"""Check of operands whose shapes must fit, by the inference of onnx and where it has no check.

Kernels would read and write beyond the tensors. ONNX Runtime refuses most of such operands when it
runs; of a PRelu, it broadcasts the data to longer slopes, which the standard does not allow.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

import onnx

from tuner.errors import ModelError
from tuner.networks.onnx.foreign import is_foreign
from tuner.networks.onnx.graph import Array, attribute, constant_readers, fixed_shapes
from tuner.networks.onnx.node_builder import opset_of
from tuner.networks.onnx.unknown_shapes import refuse_failures

_Shape = tuple[int, ...]
_Lengths = tuple[int | None, ...]


def check_operands(model: onnx.ModelProto) -> None:
    """Check the operands of the main graph whose shapes are known.

    Args:
        model: Model with ``value_info`` of all shapes that could be inferred.

    Raises:
        ModelError: If operands do not fit together.
    """
    refuse_failures(model)
    shapes, constants = fixed_shapes(model.graph), constant_readers(model.graph)
    opset = opset_of(model)
    for node in model.graph.node:
        kind = "Reduce" if node.op_type.startswith("Reduce") else node.op_type
        if is_foreign(node) or kind not in _DEMANDS:
            continue
        operands = _Operands(node, shapes, constants, opset)
        try:
            for demand in _DEMANDS[kind](operands):
                is_met = _RELATIONS[demand.relation]
                if operands.has(demand.place) and not is_met(operands[demand.place], demand.shape):
                    raise _refusal(model, operands, demand)
        except _UnknownShapeError:
            continue


class _UnknownShapeError(Exception):
    """The shape of an operand is unknown, or the operand is left out."""


@dataclass(frozen=True)
class _Operands:
    """Shapes of the operands of a node by their places, and the arrays of constants by name."""

    node: onnx.NodeProto
    shapes: Mapping[str, _Shape]
    constants: Mapping[str, Callable[[], Array]]
    opset: int

    def has(self, place: int) -> bool:
        return place < len(self.node.input) and self.node.input[place] in self.shapes

    def __getitem__(self, place: int) -> _Shape:
        if not self.has(place):
            raise _UnknownShapeError
        return self.shapes[self.node.input[place]]

    @property
    def output(self) -> _Shape:
        if self.node.output[0] not in self.shapes:
            raise _UnknownShapeError
        return self.shapes[self.node.output[0]]

    def number(self, name: str, default: int) -> int:
        return int(attribute(self.node, name, default))


@dataclass(frozen=True)
class _Demand:
    """Shape that an operand must have; None stands for any length.

    Attributes:
        relation: Words for the relation between both shapes, a key of ``_RELATIONS``.
    """

    place: int
    shape: _Lengths
    relation: str = "must be"

    def __str__(self) -> str:
        lengths = ", ".join("any" if each is None else str(each) for each in self.shape)
        return f"{self.relation} ({lengths}{',' * (len(self.shape) == 1)})"


def _have(fits: Callable[[int, int], bool], shape: _Shape, demanded: _Lengths) -> bool:
    return len(shape) == len(demanded) and all(
        limit is None or fits(length, limit) for length, limit in zip(shape, demanded, strict=True)
    )


def _broadcasts(shape: _Shape, demanded: _Lengths) -> bool:
    whole = (1,) * (len(demanded) - len(shape)) + shape
    return _have(lambda length, limit: length in (1, limit), whole, demanded)


_RELATIONS: Mapping[str, Callable[[_Shape, _Lengths], bool]] = {
    "must be": partial(_have, int.__eq__),
    "must be at most": partial(_have, int.__le__),
    "must broadcast to": _broadcasts,
    "must have as many elements as": lambda shape, other: (
        prod(shape) == prod(each or 0 for each in other)
    ),
}


def _refusal(model: onnx.ModelProto, operands: _Operands, demand: _Demand) -> ModelError:
    node = operands.node
    formal = onnx.defs.get_schema(node.op_type, opset_of(model)).inputs[demand.place].name
    return ModelError(
        f"{node.op_type} {node.name or node.output[0]!r}: operand {formal} has the shape "
        f"{operands[demand.place]}, which {demand}: export the model again",
        code="invalid-model",
    )


_Demands = Iterator[_Demand]


def _attention(operands: _Operands) -> _Demands:
    query, key, value = operands[0], operands[1], operands[2]
    if len(query) == 4:
        yield _Demand(1, (query[0], None, None, query[3]))
        yield _Demand(2, (*key[:3], None))
        (batch, n_heads, n_queries, size), n_kept, kept_size = query, key[1], value[3]
        yield _Demand(0, (batch, n_kept * max(n_heads // n_kept, 1), n_queries, size))
    else:
        yield _Demand(0, (None, None, None))
        n_heads = operands.number("q_num_heads", 1)
        n_kept = operands.number("kv_num_heads", n_heads)
        batch, n_queries, size = query[0], query[1], query[2] // n_heads
        yield _Demand(0, (None, None, size * n_heads))
        yield _Demand(1, (batch, None, size * n_kept))
        kept_size = value[-1] // n_kept
        yield _Demand(2, (batch, key[1], kept_size * n_kept))
    yield _Demand(4, (batch, n_kept, None, size))
    yield _Demand(5, (batch, n_kept, operands[4][2] if operands.has(4) else None, kept_size))
    # The mask of a later opset may be shorter than the keys.
    yield _Demand(3, (batch, n_heads, n_queries, None), "must broadcast to")
    yield _Demand(6, (batch,))


def _convolution(operands: _Operands) -> _Demands:
    place, bias, of_data, of_weight = _QUANTISED.get(operands.node.op_type, (1, 2, (), ()))
    data, weight = operands[0], operands[place]
    yield _Demand(place, (None, None, *_window(operands)))
    yield _Demand(0, (data[0], weight[1] * operands.number("group", 1), *data[2:]))
    yield _Demand(bias, weight[:1])
    yield from (_Demand(each, (1,), "must broadcast to") for each in of_data)
    yield from (_Demand(each, weight[:1], "must broadcast to") for each in of_weight)


# Places of the second factor and of the bias, then of the scales and zero points of the first
# factor and the result, and of the second factor.
_QUANTISED = {
    "ConvInteger": (1, 4, (2,), (3,)),
    "MatMulInteger": (1, 4, (2,), (3,)),
    "QLinearConv": (3, 8, (1, 2, 6, 7), (4, 5)),
    "QLinearMatMul": (3, 8, (1, 2, 6, 7), (4, 5)),
}


def _transposed_convolution(operands: _Operands) -> _Demands:
    data, weight = operands[0], operands[1]
    yield _Demand(1, (data[1], None, *_window(operands)))
    yield _Demand(2, (weight[1] * operands.number("group", 1),))


def _window(operands: _Operands) -> _Lengths:
    """Return the lengths of a kernel behind its channels."""
    return tuple(attribute(operands.node, "kernel_shape", (None,) * (len(operands[0]) - 2)))


def _deformed_convolution(operands: _Operands) -> _Demands:
    data, weight, n_groups = operands[0], operands[1], operands.number("offset_group", 1)
    yield _Demand(1, (None, None, *_window(operands)))
    yield _Demand(0, (None, weight[1] * operands.number("group", 1), None, None))
    n_points = n_groups * weight[2] * weight[3]
    yield _Demand(3, weight[:1])
    yield _Demand(2, (data[0], 2 * n_points, *operands.output[2:]))
    yield _Demand(4, (data[0], n_points, *operands.output[2:]))


def _gather_elements(operands: _Operands) -> _Demands:
    data = operands[0]
    axis = operands.number("axis", 0) % max(len(data), 1)
    lengths = [None if each == axis else length for each, length in enumerate(data)]
    yield _Demand(1, tuple(lengths), "must be at most")
    yield _Demand(2, operands[1])


def _gather_nd(operands: _Operands) -> _Demands:
    data, indices = operands[0], operands[1]
    n_batches = operands.number("batch_dims", 0)
    yield _Demand(1, (*data[:n_batches], *[None] * (len(indices) - n_batches)))


def _group_norm(operands: _Operands) -> _Demands:
    # A number for each group, as before opset 21, or for each channel.
    n_groups = operands.number("num_groups", 1)
    lengths = operands[0][1:2] if operands[1] != (n_groups,) else (n_groups,)
    yield _Demand(1, lengths)
    yield _Demand(2, lengths)


def _instance_norm(operands: _Operands) -> _Demands:
    yield _Demand(1, operands[0][1:2])
    yield _Demand(2, operands[0][1:2])


def _layer_norm(operands: _Operands) -> _Demands:
    yield _Demand(1, operands[0], "must broadcast to")
    yield _Demand(2, operands[0], "must broadcast to")


def _integer_product(operands: _Operands) -> _Demands:
    place, _, of_rows, of_columns = _QUANTISED[operands.node.op_type]
    rows, columns = operands[0][-2:-1] or (1,), operands[place][1:][-1:] or (1,)
    for lengths, places in ((rows, of_rows), (columns, of_columns)):
        for each in places:
            # Numbers of more axes broadcast, which the inference checks.
            if operands.has(each) and len(operands[each]) < 2:
                yield _Demand(each, lengths, "must broadcast to")


def _loss(operands: _Operands) -> _Demands:
    scores = operands[0]
    yield _Demand(0, (None,) * max(len(scores), 2))
    yield _Demand(1, (scores[0], *scores[2:]))
    yield _Demand(2, scores[1:2])


def _product(operands: _Operands) -> _Demands:
    yield _Demand(0, (None, None))
    rows, inner = operands[0][:: -1 if operands.number("transA", 0) else 1]
    step = -1 if operands.number("transB", 0) else 1
    yield _Demand(1, (inner, None)[::step])
    yield _Demand(2, (rows, operands[1][::step][1]), "must broadcast to")


def _recurrent(operands: _Operands) -> _Demands:
    is_batch_first, n_gates = operands.number("layout", 0), _GATES[operands.node.op_type]
    yield _Demand(0, (None, None, None))
    yield _Demand(2, (None, None, None))
    data, hidden = operands[0], operands.number("hidden_size", operands[2][2])
    n_directions = 1 + (attribute(operands.node, "direction", b"forward") == b"bidirectional")
    batch = data[1 - is_batch_first]
    yield _Demand(1, (n_directions, n_gates * hidden, data[2]))
    yield _Demand(2, (n_directions, n_gates * hidden, hidden))
    yield _Demand(3, (n_directions, 2 * n_gates * hidden))
    yield _Demand(4, (batch,))
    outer = (batch, n_directions) if is_batch_first else (n_directions, batch)
    yield _Demand(5, (*outer, hidden))
    yield _Demand(6, (*outer, hidden))
    yield _Demand(7, (n_directions, 3 * hidden))


_GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}


def _reverse_sequence(operands: _Operands) -> _Demands:
    batch, time = operands.number("batch_axis", 1), operands.number("time_axis", 0)
    # No shape is met by axes that are not the first two.
    yield _Demand(1, operands[0][batch : batch + 1] if {batch, time} == {0, 1} else ())


def _reshape(operands: _Operands) -> _Demands:
    yield _Demand(1, (None,))
    yield _Demand(0, operands.output, "must have as many elements as")


def _rotary_embedding(operands: _Operands) -> _Demands:
    data, n_heads = operands[0], operands.number("num_heads", 0)
    n_steps, size = (data[2], data[3]) if len(data) == 4 else (data[1], data[2] // max(n_heads, 1))
    n_pairs = (operands.number("rotary_embedding_dim", 0) or size) // 2
    yield _Demand(3, (data[0], n_steps))
    # Positions choose among the rows of both tables.
    has_positions = any(operands.node.input[3:])
    outer = operands[1][:1] if has_positions else (data[0], n_steps)
    yield _Demand(1, (*outer, n_pairs))
    yield _Demand(2, (*outer, n_pairs))


def _scales(operands: _Operands) -> _Demands:
    data, scale = operands[0], operands[1]
    axis, block = operands.number("axis", 1), operands.number("block_size", 0)
    if block and data:
        axis %= len(data)
        yield _Demand(1, (*data[:axis], -(-data[axis] // block), *data[axis + 1 :]))
    elif scale in ((), (1,)):
        yield _Demand(2, (1,), "must broadcast to")
        return
    else:
        # A vector has no other axis than its first, whichever is named.
        has_axis = -len(data) <= axis < len(data)
        yield _Demand(1, (data[axis],) if has_axis else data if len(data) == 1 else ())
    yield _Demand(2, scale)


def _scatter_nd(operands: _Operands) -> _Demands:
    data, indices = operands[0], operands[1]
    yield _Demand(1, (None,) * max(len(indices), 1))
    yield _Demand(1, (*indices[:-1], len(data)), "must be at most")
    yield _Demand(2, (*indices[:-1], *data[indices[-1] :]))


def _scan(operands: _Operands) -> _Demands:
    yield _Demand(1, (1,), "must broadcast to")
    read = operands.constants.get(operands.node.input[1])
    axis = int(read().item()) if read else 0
    yield _Demand(0, (None,) * max(len(operands[0]), axis + 1, -axis))


def _slice(operands: _Operands) -> _Demands:
    for place in range(1, 5):
        yield _Demand(place, (operands[1][:1] or (None,)))


def _slope(operands: _Operands) -> _Demands:
    # Before version 7, a vector has a number for each channel.
    is_of_channels = operands.opset < 7 and len(operands[1]) == 1
    yield _Demand(1, operands[0][1:2] if is_of_channels else operands[0], "must broadcast to")


def _transform(operands: _Operands) -> _Demands:
    signal = operands[0]
    yield _Demand(0, (None,) * max(2, len(signal)))
    if operands.node.op_type == "DFT" or len(signal) == 3:
        yield _Demand(0, (*signal[:-1], 2 if signal[-1] > 1 else 1))


def _vector(_operands: _Operands) -> _Demands:
    yield _Demand(1, (None,))


def _unpool(operands: _Operands) -> _Demands:
    yield _Demand(1, operands[0])
    yield _Demand(2, (len(operands[0]),))


_DEMANDS: Mapping[str, Callable[[_Operands], _Demands]] = {
    "Attention": _attention,
    "ConvTranspose": _transposed_convolution,
    "DeformConv": _deformed_convolution,
    "GatherND": _gather_nd,
    "Gemm": _product,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "MaxUnpool": _unpool,
    "PRelu": _slope,
    "Pad": lambda _: iter([_Demand(3, (None,))]),
    "ReverseSequence": _reverse_sequence,
    "RotaryEmbedding": _rotary_embedding,
    "Reshape": _reshape,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "SoftmaxCrossEntropyLoss": _loss,
    **dict.fromkeys(("CumProd", "CumSum"), _scan),
    **dict.fromkeys(("DFT", "STFT"), _transform),
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _convolution),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _scales),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    **dict.fromkeys(("GatherElements", "Scatter", "ScatterElements"), _gather_elements),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _layer_norm),
    **dict.fromkeys(("MatMulInteger", "QLinearMatMul"), _integer_product),
    **dict.fromkeys(("Split", "Squeeze", "Reduce"), _vector),
}
