"""Graphs that few bytes make expensive or endless: nested, recursive, long, huge."""

import random
from typing import Any

import onnx
from onnx import TensorProto, helper

#: Sizes that arithmetic, allocations and conversions of types get wrong.
SIZES = (0, -1, 1, 2, 7, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
NAMES = (
    "",
    "\x00",
    "a\nb\tc",
    "\u202egnp.exe",
    "\U0001f600" * 50,
    "../../../etc/passwd",
    "'; DROP TABLE job; --",
    "<script>alert(1)</script>",
    "%s%n{0}{{7*7}}",
    "x" * 1_000_000,
)
_MAX_NODES = 1_500

Draw = random.Random


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
        outputs = [info.name for info in graph.output]
        branches = {"then_branch": inner, "else_branch": inner} if depth < 15 else {}
        node = helper.make_node(
            "If", [condition.name], outputs, **(branches or {"then_branch": inner})
        )
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.append(node)
        graph.initializer.append(condition)


def _function(draw: Draw, model: onnx.ModelProto) -> None:
    """Define an operator by a function of the model: a plain one, or one that calls itself."""
    if not model.graph.node:
        return
    node = draw.choice(model.graph.node)
    called = draw.choice((node.op_type, "Own", "Own"))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [helper.make_node(called, ["x"], ["y"], domain=draw.choice(("", "own")))]
    model.functions.append(helper.make_function("own", "Own", ["x"], ["y"], body, opsets))
    model.opset_import.add(domain="own", version=1)
    node.op_type, node.domain = "Own", "own"


def _chain(draw: Draw, model: onnx.ModelProto) -> None:
    """Put a long chain of operators before an output, or a wide one of doubled values."""
    graph = model.graph
    if not graph.output:
        return
    name = graph.output[0].name
    operator = draw.choice(("Relu", "Sigmoid", "Identity", "Neg"))
    doubled = draw.random() < 0.3
    n_nodes = draw.choice((20, 50, 200, 200, 200, _MAX_NODES))
    last = name
    for number in range(n_nodes):
        new = f"{name[:50]}_chain_{number}"
        inputs = [last, last] if doubled else [last]
        graph.node.append(helper.make_node("Add" if doubled else operator, inputs, [new]))
        last = new
    graph.output[0].name = last


def _bomb(draw: Draw, model: onnx.ModelProto) -> None:
    """Add a constant of a huge size to an output, written in a few bytes."""
    graph = model.graph
    if not graph.output:
        return
    n_dims = draw.choice((1, 2, 4, 8))
    shape = [draw.choice((2**10, 2**20, 2**31, 2**40, 2**62)) for _ in range(n_dims)]
    graph.initializer.append(helper.make_tensor("shape", TensorProto.INT64, [n_dims], shape))
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    graph.initializer.append(one)
    ends = [helper.make_tensor(f"end_{i}", TensorProto.FLOAT, [], [v]) for i, v in enumerate(
        (0.0, 1e12, draw.choice((1.0, 1e-3, 0.0)))
    )]  # fmt: skip
    graph.initializer.extend(ends)
    makers: tuple[tuple[str, list[str], dict[str, Any]], ...] = (
        ("ConstantOfShape", ["shape"], {}),
        ("Expand", ["one", "shape"], {}),
        ("Tile", ["one", "shape"], {}),
        ("Range", ["end_0", "end_1", "end_2"], {}),
        ("Pad", ["one", "shape"], {}),
        ("Reshape", ["one", "shape"], {}),
        ("RandomNormal", [], {"shape": shape}),
    )
    operator, inputs, attributes = draw.choice(makers)
    old = graph.output[0].name
    graph.node.append(helper.make_node(operator, inputs, ["bomb"], **attributes))
    graph.node.append(helper.make_node("Add", [old, "bomb"], ["bombed"]))
    graph.output[0].name = "bombed"


def _loop(draw: Draw, model: onnx.ModelProto) -> None:
    """Add the result of a loop over constants, with a huge number of turns, to an output."""
    graph = model.graph
    if not graph.output:
        return
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node(draw.choice(("Add", "Mul")), ["state", "state"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [1]),
        ],
    )
    turns = draw.choice((1, 1_000, 2**31, 2**62, -1))
    graph.initializer.append(helper.make_tensor("turns", TensorProto.INT64, [], [turns]))
    graph.initializer.append(helper.make_tensor("begin", TensorProto.FLOAT, [1], [1.0]))
    graph.initializer.append(helper.make_tensor("always", TensorProto.BOOL, [], [True]))
    loop = helper.make_node("Loop", ["turns", "always", "begin"], ["looped"], body=body)
    old = graph.output[0].name
    graph.node.extend([loop, helper.make_node("Add", [old, "looped"], ["added"])])
    graph.output[0].name = "added"


def _extras(draw: Draw, model: onnx.ModelProto) -> None:
    """Fill parts of the format that few files use."""
    graph = model.graph
    change = draw.randrange(4)
    if change == 0:
        sparse = graph.sparse_initializer.add()
        sparse.dims.extend([draw.choice(SIZES), 4])
        sparse.values.CopyFrom(helper.make_tensor("sparse", TensorProto.FLOAT, [2], [1.0, 2.0]))
        sparse.indices.CopyFrom(
            helper.make_tensor("at", TensorProto.INT64, [2], [draw.choice(SIZES), 1])
        )
    elif change == 1:
        model.training_info.add().algorithm.CopyFrom(graph)
    elif change == 2:
        model.metadata_props.add(key=draw.choice(NAMES), value=draw.choice(NAMES))
        graph.doc_string = draw.choice(NAMES)
    else:
        graph.quantization_annotation.add(tensor_name=draw.choice(NAMES))


#: Changes of a model, each in place; one that does not apply leaves it as it is.
ATTACKS = (_nest, _function, _chain, _bomb, _loop, _extras)
