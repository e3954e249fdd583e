"""No value that a network computes makes a kernel leave its tensors, or ends the process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.tuner.engines.relax.networks import compiled, lower_proto, run_lowered, run_module
from tests.tuner.networks.models import Array
from tuner.engines.base import TargetInfo
from tuner.engines.relax.graph.definitions.guards import guard_kernels
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.verification import references
from tuner.engines.verification.interpreter.translation import translate

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:::tvm")]

_FAR = 10**9
_DATA = np.arange(32, dtype=np.float32).reshape(4, 8)
_SEVENS = np.full((4, 2), 7, np.float32)


@dataclass(frozen=True)
class Case:
    """An operator whose operand ``i`` is computed: converted from an input of float64.

    Attributes:
        node: The operator, with the output ``y``.
        computed: Values of ``i``.
        expected: Values of ``y``.
        others: Its other operands, inputs of the model.
        weights: Its constant operands.
        opset: Version of the operator.
    """

    node: NodeProto
    computed: Array
    expected: Array
    others: Mapping[str, Array] = field(default_factory=dict)
    weights: Mapping[str, Array] = field(default_factory=dict)
    opset: int = 18

    @property
    def feeds(self) -> dict[str, Array]:
        """Inputs of the model."""
        return {"computed": self.computed.astype(np.float64), **self.others}

    def model(self) -> Any:
        """Return the model."""
        dtype_of = helper.np_dtype_to_tensor_dtype
        cast = helper.make_node("Cast", ["computed"], ["i"], to=dtype_of(self.computed.dtype))
        graph = helper.make_graph(
            [cast, self.node],
            "guarded",
            [
                helper.make_tensor_value_info(n, dtype_of(a.dtype), a.shape)
                for n, a in self.feeds.items()
            ],
            [
                helper.make_tensor_value_info(
                    "y", dtype_of(self.expected.dtype), self.expected.shape
                )
            ],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _written(base: Array, places: Sequence[tuple[int, ...]], value: float = 7.0) -> Array:
    """Return a copy with a value at some places."""
    changed = base.copy()
    for place in places:
        changed[place] = value
    return changed


def _case(  # noqa: PLR0913  the parts of a model
    op: str,
    operands: str,
    computed: Any,
    expected: Any,
    *,
    dtype: Any = np.int64,
    opset: int = 18,
    domain: str = "",
    others: Mapping[str, Array] | None = None,
    weights: Mapping[str, Array] | None = None,
    **attributes: Any,
) -> Case:
    node = helper.make_node(op, operands.split(), ["y"], domain=domain, **attributes)
    given = {"x": _DATA} if others is None else others
    return Case(node, np.array(computed, dtype), np.asarray(expected), given, weights or {}, opset)


_ELEMENTS = [[8, _FAR], [-_FAR, -9], [1, 2], [-1, _FAR]]
_NEW_ELEMENTS = _written(_DATA, [(2, 1), (2, 2), (3, 7)])
_ENDS = {np.int32: np.iinfo(np.int32).min, np.int64: np.iinfo(np.int64).min}


def _division(op: str, dtype: Any, quotients: list[int], **attributes: Any) -> Case:
    dividends = np.array([5, 7, _ENDS[dtype], -7], dtype)
    return _case(
        *(op, "a i", [0, 2, -1, 2], np.array(quotients, dtype)),
        dtype=dtype,
        others={"a": dividends},
        **attributes,
    )


CASES = {
    "Gather": _case("Gather", "x i", [0, 4, -5, _FAR, -_FAR, -1], _DATA[[0, 3, 3, 3, 3, 3]]),
    "Gather-axis": _case(
        *("Gather", "x i", [8, -9, -8, 2**31 - 1], _DATA[:, [7, 7, 0, 7]]), dtype=np.int32, axis=1
    ),
    "GatherElements": _case(
        *("GatherElements", "x i", [[0, 4, -5, _FAR, -_FAR, -1, 3, 2]]),
        _DATA[[0, 3, 3, 3, 3, 3, 3, 2], range(8)][None],
        axis=0,
    ),
    "GatherND": _case(
        *("GatherND", "x i", [[0, 9], [_FAR, 0], [3, -9], [-5, 1], [2, 2]]),
        _DATA[[0, 3, 3, 3, 2], [7, 0, 7, 1, 2]],
    ),
    "GatherND-batch": _case(
        "GatherND", "x i", [[8], [_FAR], [-9], [-1]], _DATA[:, 7], batch_dims=1
    ),
    "ArrayFeatureExtractor": _case(
        *("ArrayFeatureExtractor", "x i", [[0, 8, _FAR, -_FAR]], _DATA[:, [0, 7, 7, 7]]),
        domain="ai.onnx.ml",
    ),
    "ScatterND": _case(
        *("ScatterND", "x i u", [[4], [_FAR], [-5], [2]], _written(_DATA, [(2,)])),
        others={"x": _DATA, "u": np.full((4, 8), 7, np.float32)},
    ),
    "ScatterND-other-row": _case(
        *("ScatterND", "x i u", [[0, 9], [0, -9], [2, 3], [4, 0], [-1, 8]]),
        _written(_DATA, [(2, 3)]),
        others={"x": _DATA, "u": np.full(5, 7, np.float32)},
    ),
    "ScatterElements": _case(
        *("ScatterElements", "x i u", _ELEMENTS, _NEW_ELEMENTS),
        others={"x": _DATA, "u": _SEVENS},
        axis=1,
    ),
    "ScatterElements-add": _case(
        *("ScatterElements", "x i u", _ELEMENTS),
        _DATA + (_written(_DATA * 0, [(2, 1), (2, 2), (3, 7)])),
        others={"x": _DATA, "u": _SEVENS},
        axis=1,
        reduction="add",
    ),
    "Scatter": _case(
        *("Scatter", "x i u", _ELEMENTS, _NEW_ELEMENTS),
        others={"x": _DATA, "u": _SEVENS},
        axis=1,
        opset=10,
    ),
    "MaxUnpool": _case(
        *("MaxUnpool", "p i", [[[[0, _FAR], [-_FAR, 16]]]]),
        _written(np.zeros((1, 1, 4, 4), np.float32), [(0, 0, 0, 0)], 1.0),
        others={"p": np.ones((1, 1, 2, 2), np.float32)},
        kernel_shape=[2, 2],
        strides=[2, 2],
    ),
    "OneHot": _case(
        *("OneHot", "i d v", [0, 4, -5, _FAR, -1]),
        np.array([[1, 0, 0, 0], [0] * 4, [0] * 4, [0] * 4, [0, 0, 0, 1]], np.float32),
        others={},
        weights={"d": np.array([4]), "v": np.array([0, 1], np.float32)},
    ),
    "RoiAlign": _case(
        *("RoiAlign", "image boxes i", [_FAR, -1, 0], np.ones((3, 1, 2, 2), np.float32)),
        others={
            "image": np.ones((1, 1, 8, 8), np.float32),
            "boxes": np.array([[0, 0, 4, 4]] * 3, np.float32),
        },
        output_height=2,
        output_width=2,
    ),
    "Div-int32": _division("Div", np.int32, [0, 3, _ENDS[np.int32], -3]),
    "Div-int64": _division("Div", np.int64, [0, 3, _ENDS[np.int64], -3]),
    "Mod-int32": _division("Mod", np.int32, [0, 1, 0, 1]),
    "Mod-int64": _division("Mod", np.int64, [0, 1, 0, 1]),
    "Mod-truncated": _division("Mod", np.int64, [0, 1, 0, -1], fmod=1),
    "BitShift-left": _case(
        *("BitShift", "a i", [0, 1, 32, 200], np.array([255, 510, 0, 0], np.uint32)),
        dtype=np.uint32,
        others={"a": np.full(4, 255, np.uint32)},
        direction="LEFT",
    ),
    "BitShift-right": _case(
        *("BitShift", "a i", [0, 1, 64, 200], np.array([255, 127, 0, 0], np.uint64)),
        dtype=np.uint64,
        others={"a": np.full(4, 255, np.uint64)},
        direction="RIGHT",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_computed_values_have_defined_results(target: TargetInfo, name: str) -> None:
    """Reads outside are those of the last position, writes there are dropped, x / 0 is 0."""
    case = CASES[name]

    (actual,) = run_lowered(case.model(), case.feeds, target.spec)

    np.testing.assert_array_equal(actual, case.expected)


def test_sums_that_overflow_do_not_pass_the_guard(target: TargetInfo) -> None:
    """LLVM derives that a sum of two maxima with 0 is positive, which it is not past the end."""
    names = ("a", "b")
    nodes = [helper.make_node("Relu", [name], [f"{name}_up"]) for name in names]
    nodes += [
        helper.make_node("Add", ["a_up", "b_up"], ["i"]),
        helper.make_node("Gather", ["x", "i"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "overflow",
        [helper.make_tensor_value_info(name, TensorProto.INT64, [2]) for name in names],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8])],
        [numpy_helper.from_array(_DATA, "x")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    half = np.array([2**62, 1])
    module, file = lower_proto(model, target.spec)

    (actual,) = run_module(module, file, {"a": half, "b": half}, target.spec, opt_level=3)

    np.testing.assert_array_equal(actual, _DATA[[3, 2]])


# Others have the same guards; the interpreter has no loops whose length depends on data.
@pytest.mark.parametrize(
    "name",
    [
        *("Gather", "GatherElements", "GatherND", "ScatterND-other-row", "ScatterElements-add"),
        *("MaxUnpool", "OneHot", "Div-int64", "Mod-truncated", "BitShift-left"),
    ],
)
def test_the_interpreter_agrees_on_what_it_draws(target: TargetInfo, name: str) -> None:
    """Drawn indices and divisors reach what a guard is for, and outputs are those of kernels."""
    module, _ = lower_proto(CASES[name].model(), target.spec)
    for subgraph in find_subgraphs(module):
        function = subgraph.module["main"]
        program = translate(function)
        kernel = compiled(tvm.IRModule({"main": function}))
        for kind in ("real", "whole"):
            reference = references.make(program, kind, 3)
            inputs = reference.draw()
            outputs = [
                tvm.runtime.empty([int(size) for size in each.shape], str(each.dtype))
                for each in function.params[len(inputs) :]
            ]
            kernel["main"](*map(tvm.runtime.tensor, inputs), *outputs)
            for output, expected in zip(outputs, reference.outputs, strict=True):
                actual = output.numpy()
                assert expected.bounds is None
                np.testing.assert_array_equal(actual, expected.values)


def test_a_guarded_module_stays_as_it_is(target: TargetInfo) -> None:
    """Kernels are guarded once, although they are when imported and when lowered."""
    for name in ("ScatterND", "GatherND", "Div-int32", "Mod-int64", "BitShift-left"):
        module, _ = lower_proto(CASES[name].model(), target.spec)

        tvm.ir.assert_structural_equal(guard_kernels(module), module)
