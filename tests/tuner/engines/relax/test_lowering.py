"""Lowering a graph changes no output."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tvm.s_tir import Schedule

from tests.tuner.engines.relax.conftest import Array, Save, draw
from tests.tuner.engines.relax.networks import load, run_module, run_network
from tests.tuner.networks.models import difference, run
from tuner.engines.base import ModelFile, TargetInfo
from tuner.engines.relax.graph.extract import find_subgraphs
from tuner.engines.relax.graph.fold import FOLDERS, fold_constants
from tuner.engines.relax.graph.pipeline import import_model, lower
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.target.targets import make_target
from tuner.errors import ModelError


def outputs_of(model: ModelFile, target: TargetInfo) -> tuple[Array, Array]:
    """Run a lowered model without schedules, and run the model under ONNX Runtime."""
    feeds = {n: draw(*shape, seed=9 + i) for i, (n, (shape, _)) in enumerate(model.inputs.items())}
    module = lower(model, make_target(target.spec))
    (actual,) = run_module(module, model, feeds, target.spec)
    return actual, run(Path(model.path).read_bytes(), feeds)[0]


def names_of(model: ModelFile, target: TargetInfo) -> list[str]:
    """Return the names of the subgraphs of a lowered model."""
    return [s.name for s in find_subgraphs(lower(model, make_target(target.spec)))]


def checked_names(model: ModelFile, target: TargetInfo) -> list[str]:
    """Compare the output of a model with ONNX Runtime's; return the names of its subgraphs."""
    actual, expected = outputs_of(model, target)
    assert actual.shape == expected.shape
    assert difference(actual, expected) < 1e-5
    return names_of(model, target)


@pytest.mark.parametrize(
    "tail",
    [
        [],
        [("Div", ["scale"]), ("Relu", [])],
        [("Mul", ["one"]), ("Sigmoid", [])],
        [("Add", ["image"]), ("Relu", [])],
    ],
    ids=["bare", "div", "scalar", "image"],
)
def test_padded_convolution_computes_the_same(
    save: Save, target: TargetInfo, tail: list[tuple[str, list[str]]]
) -> None:
    """1,000 channels become 1,008 internally; the output equals ONNX Runtime's."""
    nodes = [helper.make_node("Conv", ["data", "w", "b"], ["v0"], kernel_shape=[1, 1])]
    for index, (op, more) in enumerate(tail):
        nodes.append(helper.make_node(op, [f"v{index}", *more], [f"v{index + 1}"]))
    nodes[-1].output[0] = "y"
    weights = {
        "w": draw(1000, 8, 1, 1),
        "b": draw(1000, seed=1),
        "scale": np.abs(draw(1000, 1, 1, seed=2)) + 1,
        "one": np.array(2.0, "float32"),
        "image": draw(1, 1000, 5, 5, seed=3),
    }
    used = {name for node in nodes for name in node.input}
    model = save(nodes, (1, 8, 5, 5), {k: v for k, v in weights.items() if k in used})

    assert checked_names(model, target)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("GlobalAveragePool", {}),
        ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("MaxPool", {"kernel_shape": [3, 3]}),
    ],
)
def test_padding_is_dropped_behind_poolings(
    save: Save, target: TargetInfo, op: str, attributes: dict[str, list[int]]
) -> None:
    """No convolution kernel slices, and the output equals ONNX Runtime's."""
    nodes = [
        helper.make_node("Conv", ["data", "w"], ["c"], kernel_shape=[1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node(op, ["r"], ["y"], **attributes),
    ]
    model = save(nodes, (1, 8, 5, 5), {"w": draw(1000, 8, 1, 1)})

    assert not any("conv" in name and "slice" in name for name in checked_names(model, target))


def test_padding_leaves_the_slices_of_a_model_alone(save: Save, target: TargetInfo) -> None:
    """A model that drops channels of a convolution drops only those."""
    weights = {
        "w": draw(1000, 8, 1, 1),
        "start": np.array([3]),
        "end": np.array([503]),
        "axis": np.array([1]),
        "bias": draw(500, 1, 1, seed=4),
    }
    nodes = [
        helper.make_node("Conv", ["data", "w"], ["c"], kernel_shape=[1, 1]),
        helper.make_node("Slice", ["c", "start", "end", "axis"], ["s"]),
        helper.make_node("Add", ["s", "bias"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]

    assert checked_names(save(nodes, (1, 8, 5, 5), weights), target)


def test_every_folder_agrees_with_the_kernel_of_tvm() -> None:
    """Each operator that numpy folds agrees with its compiled kernel."""
    from tvm import relax

    left, right = np.abs(draw(3, 4)) + 0.5, np.abs(draw(3, 4, seed=1)) + 0.5
    less = relax.op.less
    calls: dict[str, Any] = {
        "relax.permute_dims": lambda a, _: relax.op.permute_dims(a, [1, 0]),
        "relax.reshape": lambda a, _: relax.op.reshape(a, (4, 3)),
        "relax.expand_dims": lambda a, _: relax.op.expand_dims(a, 1),
        "relax.squeeze": lambda a, _: relax.op.squeeze(relax.op.expand_dims(a, 1), 1),
        "relax.broadcast_to": lambda a, _: relax.op.broadcast_to(a, (2, 3, 4)),
        "relax.astype": lambda a, _: relax.op.astype(a, "int32"),
        "relax.where": lambda a, b: relax.op.where(relax.op.less(a, b), a, b),
        "relax.shape_to_tensor": lambda a, _: relax.op.shape_to_tensor(relax.op.shape_of(a)),
        "relax.strided_slice": lambda a, _: relax.op.strided_slice(a, [1], [-1], [0], [-2]),
        "relax.take": lambda a, _: relax.op.take(a, relax.const([2, 0], "int64"), 1, "wrap"),
        "relax.full": lambda *_: relax.op.full((3, 4), relax.const(7, "float32")),
        "relax.full_like": lambda a, _: relax.op.full_like(a, relax.const(7, "float32")),
        "relax.floor": lambda a, _: relax.op.floor(a),
        "relax.sum": lambda a, _: relax.op.sum(a, [1], keepdims=True),
        "relax.arange": lambda *_: relax.op.arange(-1, 5, 2, "int64"),
        "relax.concat": lambda a, b: relax.op.concat([a, b], -1),
        "relax.logical_and": lambda a, b: relax.op.logical_and(less(a, b), less(b, a)),
        "relax.logical_or": lambda a, b: relax.op.logical_or(less(a, b), less(b, a)),
        "relax.logical_not": lambda a, b: relax.op.logical_not(less(a, b)),
        "relax.bitwise_not": lambda a, _: relax.op.bitwise_not(relax.op.astype(a, "int32")),
    }
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((1,), "float32"))
    operators = [name.removeprefix("relax.") for name in sorted(FOLDERS)]
    with builder.function("main", [data]):
        a, b = (builder.emit(relax.const(array, "float32")) for array in (left, right))
        values = []
        for op in operators:
            unary = op in ("negative", "sqrt", "rsqrt", "exp")
            call = calls.get(f"relax.{op}") or getattr(relax.op, op)
            values.append(builder.emit(builder.normalize(call(a) if unary else call(a, b))))
        builder.emit_func_output(relax.Tuple(values))
    module = builder.get()

    folded = fold_constants(module)

    script = folded["main"].script()
    assert [op for op in operators if f"{op}(" in script] == []
    outputs = (run_network(each, np.zeros(1, "float32")) for each in (folded, module))
    for op, actual, expected in zip(operators, *outputs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, err_msg=op, strict=True)


def test_constant_rows_of_a_gather_are_constants_before_tvm_folds(save: Save) -> None:
    """No size of the data, to which negative rows are added, is computed in the network."""
    node = helper.make_node("GatherND", ["data", "rows"], ["y"])
    module = import_model(save([node], (8, 4, 3), {"rows": np.array([[0, -1], [5, 2]])}))

    left = fold_constants(module)["main"].script()

    assert [name for name in ("shape_of", "take", "where") if name in left] == []


@pytest.mark.parametrize(
    ("op", "weight", "reason"),
    [
        ("Add", np.ones(3, "int64"), "Add: B has inconsistent type"),
        ("Add", np.ones(5, "float32"), "Add: Incompatible dimensions"),
        ("Gemm", np.ones((2, 2), "float32"), "Gemm: Dimension mismatch"),
    ],
)
def test_the_reason_of_a_refusal_is_that_of_the_operands(
    save: Save, op: str, weight: Array, reason: str
) -> None:
    """ONNX refuses them too, and tells why."""
    model = save([helper.make_node(op, ["data", "w"], ["y"])], (2, 3), {"w": weight})

    with pytest.raises(ModelError, match=f"the model is invalid: {reason}") as caught:
        import_model(model)
    assert caught.value.code == "invalid-model"


def test_batch_norm_and_dropout_leave_no_kernel(save: Save, target: TargetInfo) -> None:
    """A convolution, its batch norm and its ReLU are one subgraph."""
    weights = {"w": draw(16, 8, 3, 3)}
    weights |= {name: np.abs(draw(16, seed=i)) + 0.5 for i, name in enumerate("sbmv")}
    nodes = [
        helper.make_node("Conv", ["data", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["c", *"sbmv"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    model = load(save(nodes, (1, 8, 9, 9), weights).path)

    names = checked_names(model, target)

    assert sum("conv2d" in name for name in names) == 1
    assert not [name for name in names if "norm" in name]


@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_a_scatter_has_a_root_block_and_starts_no_threads_for_an_update(
    save: Save, target: TargetInfo, op: str
) -> None:
    """Schedules find its blocks, and parallel loops are outermost ones."""
    shape = (6, 1) if op == "ScatterND" else (6, 16)
    node = helper.make_node(op, ["data", "rows", "updates"], ["y"], reduction="add")
    weights = {"rows": np.full(shape, 3), "updates": draw(6, 16, seed=1)}
    model = save([node], (8, 16), weights)

    subgraphs = find_subgraphs(lower(model, make_target(target.spec)))

    for subgraph in subgraphs:
        module = workloads.load(subgraph.ir)
        assert Schedule(module).get_sblock("root")
        assert not re.search(r"for .*:\n\s+for .*T\.parallel", module.script())
