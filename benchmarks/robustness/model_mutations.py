"""Mutations of ONNX models, as damaged and hostile files have them; every one is seeded.

Most change any field of any message, whatever it means: shapes, types, attributes, edges, opsets,
names, weights. A few build graphs that need many changes at once: nested, long or huge ones.
"""

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor as Field  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import TensorProto, helper

Draw = random.Random

#: Sizes that arithmetic, allocations and conversions of types get wrong.
_SIZES = (0, -1, 1, 2, 7, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
_NUMBERS = (0.0, -1.0, float("nan"), float("inf"), 1e38)
_NAMES = (
    *(
        "",
        "\x00",
        "a\nb\tc",
        "\u202egnp.exe",
        "\U0001f600" * 50,
        "../../../etc/passwd",
        "x" * 10**6,
    ),
    *("'; DROP TABLE job; --", "<script>alert(1)</script>", "%s%n{0}{{7*7}}", "ai.onnx.ml", "n"),
)
_OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas()})
_MAX_NODES = 1_500


def mutate(draw: Draw, content: bytes) -> bytes:
    """Return a mutant of a serialised model: of its fields, of its bytes, or of both."""
    if draw.random() < 0.8:
        model = onnx.ModelProto.FromString(content)
        for _ in range(draw.choice((1, 2, 3, 5))):
            change = draw.choice(_ATTACKS) if draw.random() < 0.2 else _change_field
            # A model that is nested as deeply as protobuf allows cannot be nested more.
            with suppress(DecodeError):
                change(draw, model)
        content = model.SerializeToString()
    else:
        content = draw.choice(_BYTES)(draw, content)
    return draw.choice(_BYTES)(draw, content) if draw.random() < 0.1 else content


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == Field.TYPE_MESSAGE:
            for each in value if field.is_repeated else (value,):
                yield from _messages(each)


def _change_field(draw: Draw, model: onnx.ModelProto) -> None:
    """Change a field of a message, of each kind of message as often."""
    kinds: dict[str, list[Message]] = {}
    for each in _messages(model):
        kinds.setdefault(each.DESCRIPTOR.name, []).append(each)
    message = draw.choice(kinds[draw.choice(sorted(kinds))])
    present = [field for field, _ in message.ListFields()]
    field = draw.choice(present if present and draw.random() < 0.8 else message.DESCRIPTOR.fields)
    if not field.is_repeated:
        if draw.random() < 0.2:
            message.ClearField(field.name)
        elif field.type == Field.TYPE_MESSAGE:
            others = kinds.get(field.message_type.name)
            if others:
                getattr(message, field.name).CopyFrom(_copy(draw.choice(others)))
        else:
            setattr(message, field.name, _value(draw, field, getattr(message, field.name), model))
        return
    items = [_copy(item) for item in getattr(message, field.name)]
    others = kinds.get(field.message_type.name, []) if field.message_type else []
    change = draw.randrange(5)
    if change == 0 and items:
        items.remove(draw.choice(items))
    elif change == 1:
        draw.shuffle(items)
    elif change == 2:
        items.clear()
    elif field.type == Field.TYPE_MESSAGE:
        items += [_copy(draw.choice(others))] if others else []
    elif items and change == 3:
        place = draw.randrange(len(items))
        items[place] = _value(draw, field, items[place], model)
    else:
        empty = type(field.default_value)() if not items else items[0]
        items += [_value(draw, field, empty, model)] * draw.choice((1, 1, 40))
    message.ClearField(field.name)
    getattr(message, field.name).extend(items)


def _copy(item: Any) -> Any:
    if not isinstance(item, Message):
        return item
    copied = type(item)()
    copied.CopyFrom(item)
    return copied


def _value(draw: Draw, field: Any, old: Any, model: onnx.ModelProto) -> Any:
    """Draw a value: hostile, of another place of the model, or of another operator."""
    if field.enum_type is not None:
        return draw.choice(field.enum_type.values).number
    if field.cpp_type in (Field.CPPTYPE_FLOAT, Field.CPPTYPE_DOUBLE):
        return draw.choice(_NUMBERS)
    if field.cpp_type != Field.CPPTYPE_STRING:
        size = draw.choice(_SIZES) if draw.random() < 0.8 else draw.randrange(300)
        bits = 31 if field.cpp_type in (Field.CPPTYPE_INT32, Field.CPPTYPE_UINT32) else 63
        lowest = 0 if field.cpp_type in (Field.CPPTYPE_UINT32, Field.CPPTYPE_UINT64) else -(2**bits)
        return min(max(size, lowest), 2**bits - 1)
    if field.type == Field.TYPE_BYTES:
        sizes = [struct.pack("<q", draw.choice(_SIZES)) for _ in range(min(len(old) // 8, 64))]
        return b"".join(sizes) or draw.randbytes(draw.choice((0, 1, 3, 4096)))
    if field.name == "op_type":
        return draw.choice(_OPERATORS)
    values = [name for node in model.graph.node for name in (*node.input, *node.output)]
    return draw.choice(values if values and draw.random() < 0.7 else _NAMES)


def _nest(draw: Draw, model: onnx.ModelProto) -> None:
    """Hide the graph in branches, in branches of branches and so on."""
    # protobuf reads at most 100 levels, of which each branch takes three.
    depth = draw.choice((1, 3, 15, 30))
    for level in range(depth):
        graph = model.graph
        inner = onnx.GraphProto()
        inner.CopyFrom(graph)
        inner.name = f"level_{level}"
        del inner.input[:]
        condition = helper.make_tensor(f"cond_{level}", TensorProto.BOOL, [], [draw.random() < 0.9])
        branches = {"then_branch": inner} | ({"else_branch": inner} if depth < 15 else {})
        outputs = [info.name for info in graph.output]
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.append(helper.make_node("If", [condition.name], outputs, **branches))
        graph.initializer.append(condition)


def _chain(draw: Draw, model: onnx.ModelProto) -> None:
    """Put a long chain of operators behind an output, or a wide one of doubled values."""
    for output in model.graph.output[:1]:
        operator, n_inputs = draw.choice((("Relu", 1), ("Neg", 1), ("Identity", 1), ("Add", 2)))
        base = output.name[:50]
        for number in range(draw.choice((20, 50, 200, 200, 200, _MAX_NODES))):
            inputs, output.name = [output.name] * n_inputs, f"{base}_chain_{number}"
            model.graph.node.append(helper.make_node(operator, inputs, [output.name]))


def _bomb(draw: Draw, model: onnx.ModelProto) -> None:
    """Add a constant of a huge size to an output, written in a few bytes."""
    shape = [
        draw.choice((2**10, 2**20, 2**31, 2**40, 2**62)) for _ in range(draw.choice((1, 2, 8)))
    ]
    for output in model.graph.output[:1]:
        graph = model.graph
        ends = zip(("one", "end", "step"), (1.0, 1e12, draw.choice((1.0, 1e-3, 0.0))), strict=True)
        graph.initializer.extend(
            helper.make_tensor(name, TensorProto.FLOAT, [], [value]) for name, value in ends
        )
        graph.initializer.append(
            helper.make_tensor("shape", TensorProto.INT64, [len(shape)], shape)
        )
        makers: tuple[tuple[str, list[str]], ...] = (
            *(("ConstantOfShape", ["shape"]), ("Range", ["one", "end", "step"])),
            *((operator, ["one", "shape"]) for operator in ("Expand", "Tile", "Pad", "Reshape")),
        )
        graph.node.append(helper.make_node(*draw.choice(makers), ["bomb"]))
        graph.node.append(helper.make_node("Add", [output.name, "bomb"], ["bombed"]))
        output.name = "bombed"


def _cut(draw: Draw, content: bytes) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _flip(draw: Draw, content: bytes) -> bytes:
    flipped = bytearray(content)
    for _ in range(draw.randrange(1, 12) if content else 0):
        flipped[draw.randrange(len(flipped))] = draw.randrange(256)
    return bytes(flipped)


def _insert(draw: Draw, content: bytes) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[:at] + draw.randbytes(draw.randrange(1, 100)) + content[at:]


def _repeat(draw: Draw, content: bytes) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[:at] + content[at : at + 100] * draw.randrange(2, 20) + content[at:]


#: Changes of a model, each in place; one that does not apply leaves it as it is.
_ATTACKS: tuple[Callable[[Draw, onnx.ModelProto], None], ...] = (_nest, _chain, _bomb)
_BYTES: tuple[Callable[[Draw, bytes], bytes], ...] = (_cut, _flip, _flip, _insert, _repeat)
