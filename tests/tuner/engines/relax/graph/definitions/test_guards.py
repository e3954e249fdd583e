"""No value that a network computes makes a kernel leave its tensors, or ends the process."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import helper

from tests.tuner.engines.relax.networks import compiled, lower_proto, run_module
from tests.tuner.engines.relax.operator_cases import Case, combine
from tests.tuner.networks.models import Array, model
from tuner.engines.base import ModelFile, TargetInfo
from tuner.engines.relax.graph.definitions.guards import guard_kernels
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.verification import references
from tuner.engines.verification.interpreter.translation import translate

_FAR = 10**9
_DATA = np.arange(32, dtype=np.float32).reshape(4, 8)
_SEVENS = np.full((4, 2), 7, np.float32)


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
    domain: str = "",
    others: Mapping[str, Array] | None = None,
    weights: Mapping[str, Array] | None = None,
    **attributes: Any,
) -> tuple[Case, Array]:
    """Return an operator and its result; its operand ``i`` is converted from an input."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Cast", ["computed"], ["i"], to=kind),
        helper.make_node(op, operands.split(), ["y"], domain=domain, **attributes),
    ]
    inputs: dict[str, Array] = {"computed": np.array(computed, np.float64)}
    inputs |= {"x": _DATA} if others is None else others
    return Case("", nodes, inputs, weights or {}), np.asarray(expected)


_ELEMENTS = [[8, _FAR], [-_FAR, -9], [1, 2], [-1, _FAR]]
_NEW_ELEMENTS = _written(_DATA, [(2, 1), (2, 2), (3, 7)])
_ENDS = {np.int32: np.iinfo(np.int32).min, np.int64: np.iinfo(np.int64).min}


def _division(op: str, dtype: Any, quotients: list[int], **attributes: Any) -> tuple[Case, Array]:
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


# Versions of the operators, which are one model of each version.
_MODELS = {
    18: CASES,
    10: {
        "Scatter": _case(
            *("Scatter", "x i u", _ELEMENTS, _NEW_ELEMENTS),
            others={"x": _DATA, "u": _SEVENS},
            axis=1,
        )
    },
}


@lru_cache(maxsize=2)
def _lowered(opset: int, target: str) -> tuple[tvm.IRModule, ModelFile, dict[str, Array]]:
    """Lower all operators of a version; return the model and its inputs, too."""
    cases = _MODELS[opset].items()
    proto, feeds, _ = combine(
        [replace(case, name=name) for name, (case, _) in cases],
        opset,
        [expected for _, (_, expected) in cases],
    )
    return *lower_proto(proto, target), feeds


@lru_cache(maxsize=2)
def _outputs(opset: int, target: str) -> dict[str, Array]:
    outputs = run_module(*_lowered(opset, target), target)
    return dict(zip(_MODELS[opset], outputs, strict=True))


@pytest.mark.parametrize(
    ("opset", "name"), [(opset, name) for opset, cases in _MODELS.items() for name in cases]
)
def test_computed_values_have_defined_results(target: TargetInfo, opset: int, name: str) -> None:
    """Reads outside are those of the last position, writes there are dropped, x / 0 is 0."""
    _, expected = _MODELS[opset][name]

    np.testing.assert_array_equal(_outputs(opset, target.spec)[name], expected)


def test_sums_that_overflow_do_not_pass_the_guard(target: TargetInfo) -> None:
    """LLVM derives that a sum of two maxima with 0 is positive, which it is not past the end."""
    names = ("a", "b")
    nodes = [helper.make_node("Relu", [name], [f"{name}_up"]) for name in names]
    nodes += [
        helper.make_node("Add", ["a_up", "b_up"], ["i"]),
        helper.make_node("Gather", ["x", "i"], ["y"]),
    ]
    feeds = dict.fromkeys(names, np.array([2**62, 1]))
    proto = model(nodes, feeds, {"y": (2, 8)}, {"x": _DATA})
    module, file = lower_proto(proto, target.spec)

    (actual,) = run_module(module, file, feeds, target.spec, opt_level=3)

    np.testing.assert_array_equal(actual, _DATA[[3, 2]])


def test_the_interpreter_agrees_on_what_it_draws(target: TargetInfo) -> None:
    """Drawn indices and divisors reach what a guard is for, and outputs are those of kernels."""
    # The interpreter has no loops whose length depends on data.
    subgraphs = [
        each
        for each in find_subgraphs(_lowered(18, target.spec)[0])
        if not each.name.startswith("roi_align")
    ]
    assert len(subgraphs) > 10
    for subgraph in subgraphs:
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
    module, *_ = _lowered(18, target.spec)

    tvm.ir.assert_structural_equal(guard_kernels(module), module)
