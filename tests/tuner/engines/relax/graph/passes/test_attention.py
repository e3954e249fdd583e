"""Attention is one kernel, with the outputs of its operators."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax
from tvm.s_tir import Schedule

from benchmarks.robustness import kernel_cases
from benchmarks.robustness.verification import Judge
from tests.gpu_compilers import needs_triton
from tests.tuner.engines.relax.conftest import Array, Save, draw
from tests.tuner.engines.relax.networks import build_untuned, relax_module, run_kernel
from tests.tuner.engines.relax.schedules.test_ranking import ranked_traces
from tests.tuner.engines.relax.test_lowering import checked_names, names_of
from tests.tuner.networks.models import difference, run
from tuner.engines.base import ExtractedTask, ModelFile, TargetInfo
from tuner.engines.relax.graph.extract import extract
from tuner.engines.relax.graph.passes.attention import outline_attention
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.schedules.cpu.attention import (
    AttentionTile,
    find_attention,
    is_worthwhile,
    schedule_attention,
)
from tuner.engines.relax.target.targets import describe_target, make_target
from tuner.engines.relax.triton import variants as triton


def _attention(
    save: Save,
    shape: tuple[int, int, int],
    *,
    masked: bool = False,
    filled: bool = False,
    image: tuple[int, int] | None = None,
) -> ModelFile:
    """Save attention over (tokens, heads, values of a head), after a product for each operand.

    The tokens of the result are the pixels of an ``image``, if it has a size.
    """
    n_tokens, n_heads, size = shape
    width = n_heads * size
    nodes = []
    for name in "qkv":
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes += [
            helper.make_node("MatMul", ["data", f"w{name}"], [f"p{name}"]),
            helper.make_node("Reshape", [f"p{name}", "heads"], [f"h{name}"]),
            helper.make_node("Transpose", [f"h{name}"], [name], perm=order),
        ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores" if masked else "scaled"], ["softmax"], axis=-1),
        helper.make_node("IsNaN", ["softmax"], ["is_nan"]),
        helper.make_node("Where", ["is_nan", "zero", "softmax"], ["weights"]),
        helper.make_node("MatMul", ["weights" if filled else "softmax", "v"], ["heads_out"]),
    ]
    if image:
        nodes += [
            helper.make_node("Reshape", ["heads_out", "pixels"], ["image"]),
            helper.make_node("Transpose", ["image"], ["rows"], perm=[0, 2, 3, 1, 4]),
        ]
    else:
        nodes.append(helper.make_node("Transpose", ["heads_out"], ["rows"], perm=[0, 2, 1, 3]))
    nodes.append(helper.make_node("Reshape", ["rows", "merged"], ["y"]))
    weights: dict[str, Array] = {
        f"w{name}": draw(width, width, seed=i) / 4 for i, name in enumerate("qkv")
    }
    weights |= {
        "heads": np.array([1, n_tokens, n_heads, size]),
        "pixels": np.array([1, n_heads, *(image or ()), size]),
        "merged": np.array([1, *(image or (n_tokens,)), width]),
        "scale": np.array(size**-0.5, np.float32),
        "zero": np.array(0, np.float32),
        "mask": np.triu(np.full((n_tokens, n_tokens), -np.inf, np.float32), 1),
    }
    if filled:
        weights["mask"][3] = -np.inf
    return save(nodes, (1, n_tokens, width), weights)


@pytest.mark.parametrize(
    ("shape", "masked", "filled"),
    [((19, 3, 24), False, False), ((32, 4, 8), True, True)],
    ids=["odd", "empty-row"],
)
def test_attention_is_one_kernel(
    save: Save,
    target: TargetInfo,
    tmp_path: Path,
    shape: tuple[int, int, int],
    masked: bool,
    filled: bool,
) -> None:
    """Rows that no tile divides, masks, and rows without any key."""
    model = _attention(save, shape, masked=masked, filled=filled)

    data = draw(*model.inputs["data"][0], seed=9)
    (expected,) = run(Path(model.path).read_bytes(), {"data": data})
    (actual,) = build_untuned([model], target, tmp_path / "out")(data=data).values()

    names = names_of(model, target)
    assert [name.partition("[")[0] for name in names].count("attention") == 1
    assert not any("softmax" in name or "transpose" in name for name in names)
    assert difference(actual, expected) < 1e-5


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "masked", "filled"),
    [("float32", False, False), ("float16", True, False), ("float32", True, True)],
)
def test_attention_is_one_kernel_on_gpus(
    save: Save, dtype: str, *, masked: bool, filled: bool
) -> None:
    """Copies, masks and conversions are part of it, and Triton has a kernel for it."""
    path = Path(_attention(save, (37, 2, 16), masked=masked, filled=filled).path)
    onnx.save(_converted(onnx.load(path), dtype), path)
    file = ModelFile(str(path), "onnx", {"data": ((1, 37, 32), dtype)})

    tasks = extract(file, describe_target("cuda:sm_90").spec).tasks

    names = sorted(task.name.partition("[")[0] for task in tasks)
    assert names == ["attention", "matmul" if dtype == "float32" else "matmul_cast"]
    assert all(triton.fits(workloads.load(task.ir)["main"]) for task in tasks)


def _converted(model: onnx.ModelProto, dtype: str) -> onnx.ModelProto:
    """Return a model whose floats have another type."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for each in model.graph.initializer:
        values = onnx.numpy_helper.to_array(each)
        if values.dtype == np.float32:
            each.CopyFrom(onnx.numpy_helper.from_array(values.astype(dtype), each.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = kind
    del model.graph.value_info[:]
    return model


def test_a_fill_may_have_axes(save: Save, target: TargetInfo) -> None:
    """It is one number all the same."""
    path = Path(_attention(save, (32, 4, 8), masked=True, filled=True).path)
    model = onnx.load(path)
    (zero,) = [each for each in model.graph.initializer if each.name == "zero"]
    zero.CopyFrom(onnx.numpy_helper.from_array(np.zeros((1, 1, 1, 1), np.float32), "zero"))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    onnx.save(model, path)

    file = ModelFile(str(path), "onnx", {"data": ((1, 32, 32), "float32")})
    assert checked_names(file, target)


def test_attention_without_a_schedule_leaves_others_alone(
    save: Save, target: TargetInfo, tmp_path: Path
) -> None:
    """The layers behind are one kernel each, with or without a mask."""
    model = onnx.load(_attention(save, (32, 4, 8)).path)
    layers = [
        _copy(onnx.load(_attention(save, (32, 4, 8), masked=masked).path), f"layer{index}_")
        for index, masked in enumerate((True, False, True), 1)
    ]
    (node,) = [node for node in model.graph.node if node.output[0] == "heads_out"]
    node.input[1] = "q"
    last = "y"
    for index, layer in enumerate(layers, 1):
        for node in layer.node:
            node.input[:] = [last if name == f"layer{index}_data" else name for name in node.input]
        model.graph.node.extend(layer.node)
        model.graph.initializer.extend(layer.initializer)
        last = f"layer{index}_y"
    model.graph.output[0].name = last
    path = tmp_path / "layers.onnx"
    onnx.save(model, path)
    file = ModelFile(str(path), "onnx", {"data": ((1, 32, 32), "float32")})

    names = [name.partition("[")[0] for name in checked_names(file, target)]

    assert (names.count("attention"), names.count("softmax")) == (2, 1)


def _copy(model: onnx.ModelProto, prefix: str) -> onnx.GraphProto:
    """Return the graph of a model with a prefix before all names."""
    return onnx.compose.add_prefix(model, prefix).graph


def test_scores_that_are_read_again_are_written(save: Save, target: TargetInfo) -> None:
    """A network that returns its weights of attention keeps the softmax apart."""
    path = Path(_attention(save, (19, 3, 24)).path)
    model = onnx.load(path)
    model.graph.output.append(helper.make_tensor_value_info("softmax", TensorProto.FLOAT, None))
    onnx.save(model, path)

    names = names_of(ModelFile(str(path), "onnx", {"data": ((1, 19, 72), "float32")}), target)

    assert not any("attention" in name for name in names)
    assert any("softmax" in name for name in names)


def test_a_few_rows_and_large_keys_stay_apart() -> None:
    """A token of a decoder, keys that leave the private cache, too many scores to verify."""
    assert is_worthwhile([12, 197, 197], 64)
    assert not is_worthwhile([12, 1, 197], 64)
    assert not is_worthwhile([1, 1024, 4096], 64)
    assert is_worthwhile([12, 1024, 1024], 64)
    assert not is_worthwhile([64, 1500, 1500], 64)


def test_a_lost_key_is_found(save: Save, target: TargetInfo, tmp_path: Path) -> None:
    """Verification refuses a kernel that adds one value less."""
    task = _task(_attention(save, (19, 3, 24)), target)
    text = workloads.load(task.ir)["main"].script()
    judge = Judge(workloads.load(task.ir)["main"], tmp_path, seed=1)

    assert judge.verdict(task.ir, "").error_text == ""
    values = "T.grid(T.int64(1), T.int64(3), T.int64(19), T.int64(24), "
    wrong = text.replace(f"{values}T.int64(19))", f"{values}T.int64(18))")
    assert wrong != text
    ir = workloads.dump(workloads.as_workload(kernel_cases.parse(wrong)))
    assert judge.verdict(ir, "").error_kind == "wrong_result"


def _task(model: ModelFile, target: TargetInfo) -> ExtractedTask:
    """Return the task that is attention."""
    tasks = extract(model, target.spec).tasks
    (task,) = [each for each in tasks if each.name.startswith("attention")]
    return task


def test_every_schedule_is_a_trace_of_its_own(save: Save, target: TargetInfo) -> None:
    """The search measures other tiles; heads that do not divide over the cores are cut."""
    task = _task(_attention(save, (37, 3, 16), masked=True), target)
    module = workloads.load(task.ir)

    ranked = list(islice(ranked_traces(module, make_target(target.spec), is_closed=True), 6))

    assert len({str(trace) for trace in ranked}) == len(ranked) > 4
    schedule = Schedule(module)
    attention = find_attention(schedule)
    assert attention is not None
    assert attention.n_heads == 3
    schedule_attention(schedule, AttentionTile(4, 2, 1), lanes=4, n_cores=2)
    assert "T.parallel(T.int64(6))" in schedule.mod.script()


def test_rows_of_an_image_are_tiled_as_rows(save: Save, target: TargetInfo) -> None:
    """No tile of 4 rows is a rectangle of the 5x7 that the result has in their place."""
    task = _task(_attention(save, (35, 3, 16), image=(5, 7)), target)
    module = workloads.load(task.ir)
    schedule = Schedule(module)

    schedule_attention(schedule, AttentionTile(4, 2, 1), lanes=4, n_cores=2)

    expected, actual = (_run(each) for each in (module, schedule.mod))
    assert difference(actual, expected) < 1e-5


def _run(module: tvm.IRModule) -> Array:
    """Return the output of a workload for inputs that are drawn."""
    shapes = [[int(size) for size in param.shape] for param in module["main"].params]
    (output,) = run_kernel(module, *(draw(*shape) for shape in shapes[:-1]))
    return output


def test_a_chain_before_a_product_may_be_long() -> None:
    """Each of its operators is looked at once, however often its value is used."""

    def chain(emit: Callable[[relax.Expr], relax.Var], value: relax.Expr) -> relax.Expr:
        for _ in range(600):
            value = emit(relax.op.multiply(value, value))
        return relax.op.matmul(value, relax.const(np.ones((8, 3), "float32")))

    module = relax_module(chain, (4, 8))

    outlined, results = outline_attention(module, is_worthwhile)

    assert not results
    tvm.ir.assert_structural_equal(outlined, module)
