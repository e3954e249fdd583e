"""Loops with a constant number of turns are unrolled, others are refused."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks.models import Array, model, run
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean
from tuner.networks.onnx.control_flow.loops import unroll_loops


def body(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, Any]],
    outputs: dict[str, tuple[int, Any]],
    weights: dict[str, Array] | None = None,
) -> onnx.GraphProto:
    """Return the graph of one turn; values are given by type and shape."""
    infos = [
        [helper.make_tensor_value_info(name, *each) for name, each in values.items()]
        for values in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    return helper.make_graph(nodes, "body", *infos, tensors)


_NUMBER: tuple[int, Any] = (TensorProto.INT64, [])
_FLAG: tuple[int, Any] = (TensorProto.BOOL, [])
_ROW: tuple[int, Any] = (TensorProto.FLOAT, [3])
#: Turn i adds i to the state and stacks its square; ``outer`` is of the graph around the loop.
_TURN = [
    helper.make_node("Cast", ["i"], ["number"], to=TensorProto.FLOAT),
    helper.make_node("Mul", ["number", "outer"], ["step"]),
    helper.make_node("Add", ["state", "step"], ["next"]),
    helper.make_node("Mul", ["next", "next"], ["square"]),
]


def loop(condition: list[onnx.NodeProto], trips: str, start: str) -> onnx.ModelProto:
    """Return a model of a loop that ends after ``trips`` or by its condition."""
    weights = {"limit": np.array(4), "one": np.array(1)}
    turn = body(
        [*_TURN, *condition],
        {"i": _NUMBER, "go": _FLAG, "state": _ROW, "count": _NUMBER},
        {"goes": _FLAG, "next": _ROW, "counted": _NUMBER, "square": _ROW},
        weights,
    )
    nodes = [
        helper.make_node("Abs", ["data"], ["outer"]),
        helper.make_node(
            "Loop", [trips, start, "data", "zero"], ["y", "last", "squares"], body=turn
        ),
    ]
    outputs = {"y": (3,), "squares": ("n", 3)}
    constants = {"trips": np.array(7), "start": np.array(True), "zero": np.array(0)}
    return model(nodes, {"data": (3,)}, outputs, constants)


_GOES_ON = [
    helper.make_node("Identity", ["go"], ["goes"]),
    helper.make_node("Identity", ["count"], ["counted"]),
]
_COUNTS = [
    helper.make_node("Add", ["count", "one"], ["counted"]),
    helper.make_node("Less", ["counted", "limit"], ["goes"]),
]


def check(proto: onnx.ModelProto, feeds: dict[str, Array]) -> set[str]:
    """Check that cleaning keeps the outputs; return the operators that are left."""
    network = clean(proto)
    before, after = run(proto.SerializeToString(), feeds), run(network.model, feeds)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6)
    return {node.op_type for node in onnx.load_from_string(network.model).graph.node}


@pytest.mark.parametrize(
    ("condition", "trips", "start"),
    [(_GOES_ON, "trips", ""), (_COUNTS, "", "start"), (_COUNTS, "trips", "start")],
)
def test_a_loop_is_unrolled(condition: list[onnx.NodeProto], trips: str, start: str) -> None:
    """By its number of turns, by a condition that counts, or by both."""
    proto = loop(condition, trips, start)

    left = check(proto, {"data": np.array([1.0, -2.0, 0.5], "float32")})

    assert "Loop" not in left


@pytest.mark.parametrize(("trips", "start"), [(0, True), (-3, True), (7, False)])
def test_a_loop_without_turns_stacks_nothing(trips: int, start: bool) -> None:
    """Its states stay, and what it stacks has the declared shape."""
    proto = loop(_GOES_ON, "trips", "start")
    for tensor, value in zip(proto.graph.initializer, (trips, start), strict=False):
        tensor.CopyFrom(numpy_helper.from_array(np.array(value), tensor.name))
    joint = helper.make_node("Concat", ["squares", "squares_of_one"], ["rows"], axis=0)
    proto.graph.node.append(joint)
    rows = numpy_helper.from_array(np.ones((1, 3), "float32"), "squares_of_one")
    proto.graph.initializer.append(rows)
    proto.graph.output[1].CopyFrom(
        helper.make_tensor_value_info("rows", TensorProto.FLOAT, ("n", 3))
    )

    assert "Loop" not in check(proto, {"data": np.array([1, -2, 3], "float32")})


def _stack_of_unknown_shape(stack: str) -> onnx.ModelProto:
    """Return a loop of no turns that stacks as many values as the data choose."""
    turn = body(
        [
            helper.make_node("Identity", ["go"], ["goes"]),
            helper.make_node("Identity", ["state"], ["next"]),
            helper.make_node("Compress", ["state", "chosen"], ["some"]),
        ],
        {"i": _NUMBER, "go": _FLAG, "state": _ROW},
        {"goes": _FLAG, "next": _ROW, "some": (TensorProto.FLOAT, ["k"])},
    )
    node = helper.make_node("Loop", ["turns", "", "x"], ["y", stack], body=turn)
    inputs: dict[str, Any] = {"x": (3,), "chosen": np.zeros(3, bool)}
    outputs: dict[str, Any] = {"y": (3,), stack: ("n", "k")} if stack else {"y": (3,)}
    return model([node], inputs, outputs, {"turns": np.array(0)})


def test_a_stack_of_no_turns_that_nobody_reads_needs_no_shape() -> None:
    """The loop is its states."""
    assert clean(_stack_of_unknown_shape("")).outputs["y"].shape == (3,)


def test_a_stack_of_no_turns_needs_a_shape() -> None:
    """The message names what the body declares."""
    with pytest.raises(ModelError, match=r"no turns stacks .* unknown shapes, some FLOAT, k:"):
        clean(_stack_of_unknown_shape("rows"))


def test_a_loop_as_long_as_what_another_one_stacks_is_unrolled() -> None:
    """Its turns are computed from a shape, though nodes of the first loop's turns share a name."""
    proto = loop(_GOES_ON, "trips", "")
    proto.graph.node[1].attribute[0].g.node[0].name = "number"
    turn = body(
        [
            helper.make_node("Identity", ["go2"], ["goes2"]),
            helper.make_node("Sin", ["row"], ["next_row"]),
        ],
        {"i2": _NUMBER, "go2": _FLAG, "row": _ROW},
        {"goes2": _FLAG, "next_row": _ROW},
    )
    proto.graph.node.extend(
        [
            helper.make_node("Shape", ["squares"], ["sizes"]),
            helper.make_node("Cast", ["sizes"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMax", ["floats"], ["largest"], keepdims=0),
            helper.make_node("Cast", ["largest"], ["length"], to=TensorProto.INT64),
            helper.make_node("Loop", ["length", "", "y"], ["z"], body=turn),
        ]
    )
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [3]))

    operators = check(proto, {"data": np.array([1.0, -2.0, 3.0], "float32")})

    assert not operators & {"Loop", "Shape"}


def test_a_loop_that_the_data_ends_is_refused() -> None:
    """The message says what to export instead."""
    condition = [
        helper.make_node("ReduceMax", ["next"], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Less", ["whole", "limit"], ["goes"]),
        helper.make_node("Identity", ["count"], ["counted"]),
    ]
    with pytest.raises(ModelError, match="depends on the data") as caught:
        clean(loop(condition, "trips", ""))
    assert caught.value.code == "loop"


def test_a_loop_of_too_many_operators_is_refused() -> None:
    """The message has the turns and the operators."""
    proto = loop(_GOES_ON, "trips", "")
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(9000), "trips"))

    with pytest.raises(ModelError, match="9000 turns would become 72000 operators") as caught:
        clean(proto)
    assert caught.value.code == "loop"


@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_is_unrolled(backwards: int) -> None:
    """Along any axis and in both directions; its stacks too."""
    turn = body(
        [
            helper.make_node("Mul", ["state", "decay"], ["kept"]),
            helper.make_node("Add", ["kept", "row"], ["next"]),
            helper.make_node("Relu", ["next"], ["positive"]),
        ],
        {"state": _ROW, "row": _ROW},
        {"next": _ROW, "positive": _ROW},
        {"decay": np.array([0.5], "float32")},
    )
    scan = helper.make_node(
        "Scan",
        ["zeros", "data"],
        ["y", "rows"],
        body=turn,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[backwards],
        scan_output_axes=[1],
        scan_output_directions=[backwards],
    )
    outputs = {"y": (3,), "rows": (3, 5)}
    proto = model([scan], {"data": (3, 5)}, outputs, {"zeros": np.zeros(3, "float32")})
    data = np.random.default_rng(0).standard_normal((3, 5), dtype=np.float32)

    assert "Scan" not in check(proto, {"data": data})


def _nested() -> onnx.ModelProto:
    """Return a loop of three turns of a loop of two, both with inputs i, c and x."""
    one = numpy_helper.from_array(np.ones(3, "float32"), "one")

    def turn(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        inputs = {"i": _NUMBER, "c": _FLAG, "x": _ROW}
        return body(nodes, inputs, {f"{name}_c": _FLAG, f"{name}_x": _ROW})

    inner = turn(
        "inner",
        [
            helper.make_node("Identity", ["c"], ["inner_c"]),
            helper.make_node("Add", ["x", "one"], ["inner_x"]),
        ],
    )
    outer = turn(
        "outer",
        [
            helper.make_node("Identity", ["c"], ["outer_c"]),
            helper.make_node("Loop", ["two", "", "x"], ["summed"], body=inner),
            helper.make_node("Add", ["summed", "one"], ["outer_x"]),
        ],
    )
    node = helper.make_node("Loop", ["three", "", "data"], ["y"], body=outer)
    weights = {"two": np.array(2), "three": np.array(3)}
    proto = model([node], {"data": (3,)}, {"y": (3,)}, weights)
    proto.graph.initializer.append(one)
    return proto


def test_the_values_of_a_nested_loop_hide_others_of_their_name() -> None:
    """The inner loop reads its own inputs, and neither those around it nor values of the model."""
    proto = _nested()
    assert "Loop" not in check(proto, {"data": np.zeros(3, "float32")})

    # The state of the first turn has the name of the inner loop's state.
    for info in onnx.helper.get_attribute_value(proto.graph.node[0].attribute[0]).input[2:]:
        info.name = "state"
    proto.graph.node[0].attribute[0].g.node[1].input[2] = "state"
    proto.graph.input[0].name = proto.graph.node[0].input[2] = "x"
    assert "Loop" not in check(proto, {"x": np.zeros(3, "float32")})


def test_initialisers_of_a_nested_loop_hide_others_of_their_name() -> None:
    """Those of the graph around it keep their values too."""
    proto = _nested()
    inner = proto.graph.node[0].attribute[0].g.node[1].attribute[0].g
    proto.graph.node[0].attribute[0].g.initializer.append(
        numpy_helper.from_array(np.full(3, 5, "float32"), "five")
    )
    inner.initializer.append(numpy_helper.from_array(np.full(3, 7, "float32"), "five"))
    inner.node[1].input[1] = "five"
    feeds = {"data": np.zeros(3, "float32")}
    expected = run(proto.SerializeToString(), feeds)

    assert "Loop" not in check(proto, feeds)
    assert [unroll_loops(proto) for _ in range(3)] == [1, 3, 0]

    np.testing.assert_array_equal(run(proto.SerializeToString(), feeds)[0], expected[0])


def _repeated(turns: int, nodes: list[onnx.NodeProto], n_loops: int = 1) -> onnx.ModelProto:
    """Return loops, one behind the other, of turns that pass on what the nodes make of ``x``."""
    results = [node.output[0] for node in nodes[-1:]] or ["x"]
    turn = body(
        nodes, {"i": _NUMBER, "c": _FLAG, "x": _ROW}, {"c": _FLAG, **dict.fromkeys(results, _ROW)}
    )
    names = ["data", *(f"y{index}" for index in range(1, n_loops)), "y"]
    loops = [
        helper.make_node("Loop", ["turns", "", names[index]], [names[index + 1]], body=turn)
        for index in range(n_loops)
    ]
    return model(loops, {"data": (3,)}, {"y": (3,)}, {"turns": np.array(turns)})


def test_empty_turns_count() -> None:
    """A turn without operators has a number all the same."""
    with pytest.raises(ModelError, match="20001 turns would become 20001 operators"):
        unroll_loops(_repeated(20_001, []))


def test_all_loops_of_a_model_count() -> None:
    """Three loops are too many, of which each alone could be unrolled."""
    nodes = [helper.make_node("Relu", ["x"], ["positive"])]
    assert unroll_loops(_repeated(4000, nodes, n_loops=2)) == 2

    with pytest.raises(ModelError, match="4000 turns would become 8000 operators beside 16000"):
        unroll_loops(_repeated(4000, nodes, n_loops=3))


def test_constants_of_a_turn_are_not_copied() -> None:
    """Initialisers and Constant nodes become one of the model each."""
    nodes = [
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("Add", ["doubled", "weight"], ["next"]),
    ]
    proto = _repeated(5, nodes)
    weight = numpy_helper.from_array(np.arange(3, dtype="float32"), "weight")
    proto.graph.node[0].attribute[0].g.initializer.append(weight)
    feeds = {"data": np.array([1.0, -2.0, 0.5], "float32")}
    expected = run(proto.SerializeToString(), feeds)

    unroll_loops(proto)

    sizes = [tensor.dims for tensor in proto.graph.initializer]
    assert sum(list(dims) == [3] for dims in sizes) == 1
    assert sum(node.op_type == "Constant" for node in proto.graph.node) == 1
    np.testing.assert_array_equal(run(proto.SerializeToString(), feeds)[0], expected[0])


def test_counters_have_the_declared_rank() -> None:
    """A body may declare its counter and its condition as vectors of one element."""
    turn = body(
        [
            helper.make_node("Identity", ["c"], ["goes"]),
            helper.make_node("Concat", ["i", "i"], ["pair"], axis=0),
            helper.make_node("ReduceSum", ["pair"], ["sum"], keepdims=0),
            helper.make_node("Cast", ["sum"], ["number"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["x", "number"], ["next"]),
            helper.make_node("Shape", ["c"], ["dims"]),
        ],
        {"i": (TensorProto.INT64, [1]), "c": (TensorProto.BOOL, [1]), "x": _ROW},
        {"goes": (TensorProto.BOOL, [1]), "next": _ROW, "dims": (TensorProto.INT64, [1])},
    )
    node = helper.make_node("Loop", ["turns", "", "data"], ["y", "all_dims"], body=turn)
    proto = model([node], {"data": (3,)}, {"y": (3,)}, {"turns": np.array(3)})

    assert "Loop" not in check(proto, {"data": np.zeros(3, "float32")})


def test_a_condition_that_holds_for_too_long_is_refused() -> None:
    """The message has the number of turns that were counted."""
    proto = loop(_COUNTS, "", "start")
    limit = proto.graph.node[1].attribute[0].g.initializer[0]
    limit.CopyFrom(numpy_helper.from_array(np.array(15_000), "limit"))

    with pytest.raises(ModelError, match="still holds after 10000 turns") as caught:
        clean(proto)
    assert caught.value.code == "loop"


def test_a_loop_of_another_domain_stays() -> None:
    """Its body and its inputs may have any meaning."""
    node = helper.make_node("Loop", ["data"], ["y"], domain="com.acme")
    proto = model([node], {"data": (3,)}, {"y": (3,)})

    network = clean(proto)

    assert onnx.load_from_string(network.model).graph.node[0].op_type == "Loop"


def test_a_scan_without_states_that_change_is_computed_at_once() -> None:
    """Distances of all rows, weighted by the turn and by a value around the loop."""
    turn = body(
        [
            helper.make_node("Sub", ["rows", "row"], ["step"]),
            helper.make_node("Mul", ["step", "outer"], ["far"]),
            helper.make_node("ReduceSumSquare", ["far"], ["square"], axes=[1], keepdims=0),
            helper.make_node("ReduceMax", ["row"], ["largest"], axes=[0], keepdims=1),
            helper.make_node("ReduceSum", ["far", "last"], ["total"], keepdims=0),
            helper.make_node("Where", ["flag", "square", "largest"], ["either"]),
            helper.make_node("Add", ["either", "total"], ["distance"]),
            helper.make_node("Identity", ["rows"], ["same"]),
        ],
        {"rows": (TensorProto.FLOAT, ["n", "k"]), "row": (TensorProto.FLOAT, ["k"]), "flag": _FLAG},
        {"same": (TensorProto.FLOAT, ["n", "k"]), "distance": (TensorProto.FLOAT, ["n"])},
    )
    nodes = [
        helper.make_node("Abs", ["weights"], ["outer"]),
        helper.make_node("Greater", ["weights_of_rows", "zero"], ["flags"]),
        helper.make_node(
            "Scan", ["data", "table", "flags"], ["rest", "y"], body=turn, num_scan_inputs=2
        ),
    ]
    rng = np.random.default_rng(0)
    shapes = {"data": (4, 3), "weights": (3,), "weights_of_rows": (9000,)}
    table = rng.standard_normal((9000, 3), dtype=np.float32)
    constants = {"table": table, "zero": np.zeros(1, "float32"), "last": np.array([-1])}
    outputs = {"rest": (4, 3), "y": (9000, 4)}
    proto = model(nodes, {**shapes}, outputs, constants)

    feeds = {key: rng.standard_normal(each, dtype=np.float32) for key, each in shapes.items()}

    assert not check(proto, feeds) & {"Scan", "Gather", "Concat"}


def test_values_of_a_turn_keep_apart_from_those_of_all_turns() -> None:
    """Bodies name values as torch does, with numbers behind; a bound may be one of the turn."""
    turn = body(
        [
            helper.make_node("Add", ["rows", "least"], ["add"]),
            helper.make_node("Mul", ["add", "two"], ["add_1"]),
            helper.make_node("ReduceSum", ["add_1", "sum_axes"], ["sum"], keepdims=0),
            helper.make_node("Clip", ["sum", "zero"], ["clipped"]),
        ],
        {"least": (TensorProto.FLOAT, [])},
        {"clipped": (TensorProto.FLOAT, [4])},
    )
    scan = helper.make_node("Scan", ["data"], ["y"], body=turn, num_scan_inputs=1)
    constants = {
        **{"rows": np.arange(12, dtype="float32").reshape(4, 3), "sum_axes": np.array([1])},
        **{"two": np.full(3, 2.0, "float32"), "zero": np.array(0.0, "float32")},
    }
    proto = model([scan], {"data": (5,)}, {"y": (5, 4)}, constants)

    operators = check(proto, {"data": np.array([-9.0, -1.0, 0.0, 2.0, 3.0], "float32")})

    assert not operators & {"Scan", "Gather", "Concat"}


def test_a_scan_with_bounds_of_the_turn_is_unrolled() -> None:
    """A bound is one number for all elements."""
    turn = body(
        [helper.make_node("Clip", ["rows", "least"], ["clipped"])],
        {"least": (TensorProto.FLOAT, [])},
        {"clipped": (TensorProto.FLOAT, [4, 3])},
    )
    scan = helper.make_node("Scan", ["data"], ["y"], body=turn, num_scan_inputs=1)
    rows = np.arange(12, dtype="float32").reshape(4, 3)
    proto = model([scan], {"data": (5,)}, {"y": (5, 4, 3)}, {"rows": rows})

    check(proto, {"data": np.array([-9.0, 1.0, 4.0, 20.0, 3.0], "float32")})


def test_a_scan_with_a_turn_that_no_rule_maps_is_unrolled() -> None:
    """A product of matrices in each turn."""
    turn = body(
        [helper.make_node("MatMul", ["rows", "row"], ["product"])],
        {"row": _ROW},
        {"product": (TensorProto.FLOAT, [4])},
    )
    scan = helper.make_node("Scan", ["data"], ["y"], body=turn, num_scan_inputs=1)
    rows = np.random.default_rng(0).standard_normal((4, 3), dtype=np.float32)
    proto = model([scan], {"data": (5, 3)}, {"y": (5, 4)}, {"rows": rows})

    operators = check(proto, {"data": rows.repeat(2, 0)[:5]})

    assert "Scan" not in operators
    assert "Gather" in operators
