"""Sums of half precision are as accurate as their result can be."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import run_module
from tests.tuner.networks import models
from tests.tuner.networks.models import run
from tuner.engines.base import ModelFile, TargetInfo
from tuner.engines.relax.graph.passes.half_precision import compute_in_float32
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.target.targets import make_target

# One rounding to float16, and one more of an operand.
_ERROR = 2.0**-10


def _save(
    nodes: list[onnx.NodeProto], shape: tuple[int, ...], weights: dict[str, object], path: Path
) -> ModelFile:
    model = models.model(
        nodes,
        {"data": shape},
        {"y": None},
        weights,
        kinds={"data": TensorProto.FLOAT16, "y": TensorProto.FLOAT16},
    )
    path.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())
    return ModelFile(str(path), "onnx", {"data": (shape, "float16")})


@pytest.mark.parametrize(
    ("op", "shape", "weights", "attributes"),
    [
        ("MatMul", (4, 8192), {"w": (np.abs(draw(8192, 8)) / 64).astype("float16")}, {}),
        ("Conv", (1, 512, 6, 6), {"w": (np.abs(draw(8, 512, 3, 3)) / 32).astype("float16")}, {}),
        ("ReduceMean", (4, 8192), {}, {"axes": [1]}),
        ("GlobalAveragePool", (1, 4, 96, 96), {}, {}),
        ("Softmax", (4, 8192), {}, {"axis": -1}),
        ("LayerNormalization", (4, 4096), {"w": np.ones(4096, "float16")}, {"axis": -1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_sum_of_thousands_is_rounded_once(
    target: TargetInfo,
    tmp_path: Path,
    op: str,
    shape: tuple[int, ...],
    weights: dict[str, object],
    attributes: dict[str, object],
) -> None:
    """Sums in float16 would stop growing, or lose all but two digits."""
    nodes = [helper.make_node(op, ["data", *weights], ["y"], **attributes)]
    model = _save(nodes, shape, weights, tmp_path / "model.onnx")
    data = np.abs(draw(*shape, seed=9)).astype("float16")

    module = lower(model, make_target(target.spec))
    (actual,) = run_module(module, model, {"data": data}, target.spec)

    wide = _widened(Path(model.path))
    expected = run(wide, {"data": data.astype("float32")})[0]
    assert actual.dtype == np.float16
    np.testing.assert_allclose(actual.astype("float32"), expected, rtol=_ERROR, atol=2.0**-16)


def _widened(path: Path) -> bytes:
    """Return the model in float32."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "Cast":
            node.attribute[0].i = TensorProto.FLOAT
    for tensor in model.graph.initializer:
        wide = numpy_helper.to_array(tensor).astype("float32")
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    serialised: bytes = model.SerializeToString()
    return serialised


def test_kernels_between_input_and_output_are_those_of_float32(
    target: TargetInfo, tmp_path: Path
) -> None:
    """Parts, numbers and casts of half precision included."""
    nodes = [
        helper.make_node("Split", ["data"], ["left", "right"], axis=1),
        helper.make_node("MatMul", ["left", "w"], ["product"]),
        helper.make_node("Cast", ["product"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["wide"], ["narrow"], to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["narrow", "scale"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", "w"], ["again"]),
        helper.make_node("Concat", ["again", "right"], ["y"], axis=1),
    ]
    weights: dict[str, object] = {
        "w": draw(16, 16).astype("float16"),
        "scale": np.array(0.5, "float16"),
    }
    model = _save(nodes, (4, 32), weights, tmp_path / "model.onnx")
    data = draw(4, 32, seed=9).astype("float16")

    module = lower(model, make_target(target.spec))
    (actual,) = run_module(module, model, {"data": data}, target.spec)

    *kinds, result = (each.var.ty for each in module["main"].body.blocks[0].bindings)
    tensors = [kind for kind in kinds if isinstance(kind, relax.TensorType)]
    assert {str(kind.dtype) for kind in tensors} == {"float32"}
    assert str(result.dtype) == "float16"
    expected = run(_widened(Path(model.path)), {"data": data.astype("float32")})[0]
    assert actual.dtype == np.float16
    np.testing.assert_allclose(actual.astype("float32"), expected, rtol=_ERROR, atol=2.0**-9)


def test_a_network_keeps_its_types_at_the_edges() -> None:
    """Numbers, tuples, types that operators name, inputs that are outputs, and code of its own."""
    ops, half = relax.op, relax.TensorType((4, 8), "float16")
    builder = relax.BlockBuilder()
    x, n = relax.Var("x", half), relax.Var("n", relax.TensorType((4, 8), "int64"))
    with builder.function("main", [x, n]):
        with builder.dataflow():
            numbers = builder.emit(ops.full((4, 8), relax.const(0.5, "float16"), "float16"))
            steps = builder.emit(ops.arange(0, 8, 1, "float16"))
            counted = builder.emit(ops.astype(n, "float16"))
            parts = builder.emit(ops.split(x, 2, 1))
            left, right = (builder.emit(relax.TupleGetItem(parts, i)) for i in (0, 1))
            turned = builder.emit(ops.concat([right, left], 1))
            for each in (numbers, steps, counted):
                turned = builder.emit(ops.add(turned, each))
            opaque = builder.emit(relax.call_dps_packed("external", [turned], half))
            largest = builder.emit(ops.topk(opaque, 3, 1, "both", True, "int64"))
            fields = [builder.emit(relax.TupleGetItem(largest, i)) for i in (0, 1)]
            output = builder.emit_output(relax.Tuple([turned, x, *fields]))
        builder.emit_func_output(output)
    module = builder.get()

    widened = compute_in_float32(module)["main"]

    assert str(widened.ret_ty) == str(module["main"].ret_ty)
    bound = [each for each in widened.body.blocks[0].bindings if isinstance(each.value, relax.Call)]
    halves = [each.value for each in bound if str(getattr(each.var.ty, "dtype", "")) == "float16"]
    assert {each.op.name for each in halves} == {"relax.astype", "relax.call_dps_packed"}
