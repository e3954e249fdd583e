"""Kernels that networks get without a record agree with their workloads, in the interpreter."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from benchmarks.gpu.models import networks as of_flight
from benchmarks.gpu.models.sizes import FULL
from tests.gpu_compilers import needs_triton
from tests.tuner.engines.relax import networks
from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.triton.conftest import (
    SPEC,
    Verify,
    attention,
    broken,
    convolution,
    product,
)
from tests.tuner.engines.relax.triton.half_models import HalfModel
from tuner.engines.base import ModelFile
from tuner.engines.relax import worker
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.target.targets import make_target
from tuner.engines.relax.triton import variants
from tuner.networks.worker import load_model

pytestmark = needs_triton

# Interpreting a larger workload takes seconds.
_MAX_FLOP = 2e6
_CPU = '{"kind":"llvm"}'


def test_kernels_of_a_perceptron_agree(verify: Verify) -> None:
    """Each product and the softmax have a kernel, and the small ones are run."""
    assert len(_matched(networks.load("zoo:mlp?dtype=float16", 1), verify)) == 4


@pytest.mark.parametrize(("name", "n_kernels"), [("bert-layer", 7), ("gpt2-step", 6)])
def test_layers_are_few_kernels(name: str, n_kernels: int, tmp_path: Path) -> None:
    """Those that add shared sums count, and so does the norm before the first layer of a step."""
    path = str(tmp_path / "layer.onnx")
    of_flight.Network(name, replace(FULL, n_layers=1)).export(path)
    file = load_model(path, {}, None, str(tmp_path)).file

    n_seen = 0
    for task in worker.extract(file, worker.describe_target("cuda:sm_90").spec).tasks:
        template, match = _template_of(task.ir)
        assert template is not None, task.name
        program = template.print(match, template.ranked(match, 90)[0])
        n_seen += task.weight * len(program.kernels)

    assert n_seen <= n_kernels


def _embeddings(model: HalfModel) -> list[str]:
    """Add the sum of three tables and its norm, as BERT has them."""
    tokens, kinds = (model.input(1, 6, kind=TensorProto.INT64) for _ in range(2))
    gathered = model.add("Gather", model.weight(50, 40), tokens)
    total = model.add("Add", gathered, model.add("Gather", model.weight(2, 40), kinds))
    total = model.add("Add", total, model.weight(1, 6, 40))
    return [model.add("LayerNormalization", total, model.weight(40), model.weight(40), axis=-1)]


def _root_mean_square(model: HalfModel) -> list[str]:
    """Add the norm of Llama, which is computed in float32."""
    data = model.input(5, 48)
    wide = model.add("Cast", data, to=TensorProto.FLOAT)
    square = model.add("Mul", wide, wide)
    mean = model.add("ReduceMean", square, model.constant(np.array([-1])), keepdims=1)
    small, one = (model.constant(np.array(each, np.float32)) for each in (1e-5, 1.0))
    inverse = model.add("Div", one, model.add("Sqrt", model.add("Add", mean, small)))
    normed = model.add("Cast", model.add("Mul", wide, inverse), to=TensorProto.FLOAT16)
    return [model.add("Mul", model.weight(48), normed)]


def _norm_of_groups(model: HalfModel, n_groups: int, *, is_operator: bool) -> list[str]:
    """Add a norm of groups with its activation, and convolutions."""
    data = model.input(1, 12, 5, 7)
    kernels = [model.weight(12, 12, 1, 1) for _ in range(2)]
    if is_operator:
        value = model.add(
            *("GroupNormalization", data, model.weight(12), model.weight(12)), num_groups=n_groups
        )
    else:
        shapes = [model.constant(np.array(each)) for each in ([0, n_groups, -1], [1, 12, 5, 7])]
        ones, zeros = (model.constant(np.full(n_groups, each, np.float16)) for each in (1.0, 0.0))
        value = model.add("Reshape", model.add("Conv", data, kernels[0]), shapes[0])
        value = model.add("InstanceNormalization", value, ones, zeros)
        value = model.add("Mul", model.add("Reshape", value, shapes[1]), model.weight(12, 1, 1))
        value = model.add("Add", value, model.weight(12, 1, 1))
    value = model.add("Mul", value, model.add("Sigmoid", value))
    return [model.add("Conv", value, kernels[1])]


@pytest.mark.parametrize(
    ("add", "names"),
    [
        (_embeddings, ["take_add_add_layer_norm"]),
        (_root_mean_square, ["cast_rms_norm_cast_multiply"]),
        (
            lambda model: _norm_of_groups(model, 3, is_operator=False),
            ["conv2d", "group_norm_tir_sigmoid_multiply"],
        ),
        (
            lambda model: _norm_of_groups(model, 1, is_operator=True),
            ["cast_group_norm_cast_multiply_add_sigmoid_multiply", "conv2d"],
        ),
    ],
    ids=["embeddings", "root mean square", "groups", "one group"],
)
def test_norms_are_one_kernel(
    add: Callable[[HalfModel], list[str]], names: list[str], tmp_path: Path, verify: Verify
) -> None:
    """A norm, what it is of and what follows element by element are one kernel."""
    model = HalfModel()
    outputs = add(model)

    # onnx infers none behind a GroupNormalization.
    shape = (1, 12, 5, 7) if "conv2d" in names else None
    matched = _matched(model.load(tmp_path, *outputs, shape=shape), verify)

    assert len(matched) == len(names)
    assert all(name in each for name, each in zip(names, matched, strict=True))


def test_convolutions_have_any_dimensions(tmp_path: Path, verify: Verify) -> None:
    """Volumes and sequences, with groups, dilation or a window of each channel."""
    model = HalfModel()
    volume, sequence = model.input(1, 8, 3, 5, 5), model.input(1, 8, 19)
    grouped = model.add(
        *("Conv", volume, model.weight(12, 4, 3, 3, 3)), group=2, pads=[1] * 6, strides=[1, 2, 2]
    )
    windows = model.add("Conv", volume, model.weight(8, 1, 3, 3, 3), group=8, pads=[1] * 6)
    dilated = model.add("Conv", sequence, model.weight(12, 8, 3), dilations=[2], pads=[2] * 2)
    lines = model.add("Conv", sequence, model.weight(8, 1, 5), group=8, pads=[2] * 2)

    matched = _matched(model.load(tmp_path, grouped, windows, dilated, lines), verify)

    assert sorted(name.partition("_")[0] for name in matched) == ["conv1d"] * 2 + ["conv3d"] * 2


def _perceptron(model: HalfModel) -> list[str]:
    """Add a perceptron with a gate, as Llama has it."""
    data = model.input(5, 48)
    gate = model.add("MatMul", data, model.weight(48, 40))
    gate = model.add("Mul", gate, model.add("Sigmoid", gate))
    up = model.add("Mul", gate, model.add("MatMul", data, model.weight(48, 40)))
    return [model.add("MatMul", up, model.weight(40, 48))]


def _residual_block(model: HalfModel) -> list[str]:
    """Add a block of a ResNet whose shortcut is a convolution with strides."""
    data = model.input(1, 16, 6, 6)
    inner = model.add("Conv", data, model.weight(32, 16, 3, 3), pads=[1] * 4, strides=[2] * 2)
    weights = [model.weight(32, 32, 1, 1), model.weight(32, 16, 1, 1)]
    inner = model.add("Conv", model.add("Relu", inner), weights[0], model.weight(32))
    shortcut = model.add("Conv", data, weights[1], model.weight(32), strides=[2] * 2)
    result = model.add("Relu", model.add("Add", inner, shortcut))
    return [model.add("Add", result, model.add("Conv", result, model.weight(32, 32, 1, 1)))]


def _excitation(model: HalfModel, n_squeezed: int) -> list[str]:
    """Add a convolution whose channels are scaled by a function of their means."""
    weights = [(24, 6), (n_squeezed, 24), (24, n_squeezed), (8, 24)]
    first, *others = (model.weight(*each, 1, 1) for each in weights)
    data = model.add("Relu", model.add("Conv", model.input(1, 6, 5, 5), first))
    squeezed = model.add("Conv", model.add("GlobalAveragePool", data), others[0])
    gate = model.add("Conv", model.add("Relu", squeezed), others[1])
    scaled = model.add("Mul", data, model.add("Sigmoid", gate))
    return [model.add("Conv", scaled, others[2])]


@pytest.mark.parametrize(
    ("add", "names"),
    [
        (_perceptron, ["matmul_cast", "matmul_cast_sigmoid_multiply_matmul_cast_multiply"]),
        (
            _residual_block,
            [
                *("conv2d_cast_add", "conv2d_cast_add_conv2d_cast_add_add_relu"),
                "conv2d_cast_relu",
            ],
        ),
        (
            lambda model: _excitation(model, 8),
            [
                *("conv2d_cast", "conv2d_cast_relu", "conv2d_cast_relu"),
                *("conv2d_cast_tir_sigmoid_multiply", "mean_cast"),
            ],
        ),
        (
            lambda model: _excitation(model, 80),
            [
                *("conv2d_cast", "conv2d_cast_relu", "conv2d_cast_relu"),
                *("conv2d_cast_tir_sigmoid", "mean_cast"),
            ],
        ),
    ],
    ids=["gate", "branches", "excitation", "long excitation"],
)
def test_products_that_meet_are_one_kernel(
    add: Callable[[HalfModel], list[str]], names: list[str], tmp_path: Path, verify: Verify
) -> None:
    """Two products of weights and what follows element by element are one kernel.

    A mean converts what it sums; sums of many numbers are not repeated for each pixel of a channel.
    """
    model = HalfModel()
    file = model.load(tmp_path, *add(model))
    feeds = {name: draw(*shape, seed=1).astype(kind) for name, (shape, kind) in file.inputs.items()}

    matched = _matched(file, verify)
    (output,), (expected,) = (
        networks.run_module(lower(file, made), file, feeds, _CPU)
        for made in map(make_target, (SPEC, _CPU))
    )

    assert sorted(name.partition("[")[0] for name in matched) == names
    np.testing.assert_allclose(output, expected, atol=4e-3, rtol=4e-3)


def test_a_convolution_before_a_batch_norm_and_more_is_one_kernel(
    tmp_path: Path, verify: Verify
) -> None:
    """Its result is read twice, so that the norm cannot be part of its weights."""
    model = HalfModel()
    value = model.add("Conv", model.input(1, 8, 6, 6), model.weight(12, 8, 3, 3))
    norm = [model.constant(np.full(12, 0.5 + n, np.float16)) for n in range(4)]
    normed = model.add("Relu", model.add("BatchNormalization", value, *norm, epsilon=1e-3))
    file = model.load(tmp_path, model.add("MaxPool", value, kernel_shape=[2, 2]), normed)

    matched = _matched(file, verify)

    assert sum("conv2d" in name for name in matched) == 1


def test_few_spilled_registers_are_better_than_no_tensor_cores(tmp_path: Path) -> None:
    """For sm_80 the assembler spills eight bytes of the second kernel, whatever the first is."""
    model = HalfModel()
    value = model.add("MatMul", model.input(196, 768), model.weight(768, 384))
    normed = model.add("LayerNormalization", value, model.weight(384), model.weight(384), axis=-1)
    file = model.load(tmp_path, normed, value)
    target = worker.describe_target("cuda:sm_80").spec
    (task,) = worker.extract(file, target).tasks

    chosen = variants.by_default(workloads.load(task.ir), make_target(target))

    assert chosen is not None
    assert variants.name_of(chosen["main"]).startswith(variants.GEMM.name)


def test_products_read_transposed_matrices_as_they_are_stored(
    tmp_path: Path, verify: Verify
) -> None:
    """Weights that are inputs, as torch stores them, and matrices of several products."""
    model = HalfModel()
    rows = model.add("Gemm", model.input(5, 48), model.input(40, 48), transB=1)
    columns = model.add("Transpose", model.input(3, 24, 40), perm=[0, 2, 1])
    shape = model.constant(np.array([1, 5, 40]))
    many = model.add("Add", model.add("Reshape", rows, shape), model.weight(3, 1, 40))
    file = model.load(tmp_path, model.add("MatMul", many, columns))

    matched = _matched(file, verify)

    tasks = worker.extract(file, worker.describe_target("cuda:sm_90").spec).tasks
    assert len(matched) == 2
    assert not any("transpose" in task.name for task in tasks)


@pytest.mark.parametrize(
    "ir",
    [
        product((1, 128, 3072, 768)),
        convolution(56, (64, 64), 3),
        attention((12, 12), (128, 128, 64)),
    ],
    ids=["perceptron of BERT", "block of ResNet-50", "attention of BERT"],
)
def test_some_blocks_of_large_kernels_agree(ir: bytes, verify: Verify) -> None:
    """The first block of the first choice, the last one and some between show its errors."""
    template, match = _template_of(ir)
    assert template is not None
    program = template.print(match, template.ranked(match, 90)[0])

    assert program.kernels[0].n_blocks >= 96
    assert verify(ir, program, n_blocks=4) == ""
    for old, new in (
        ("program_id(0)", "program_id(0) // 2"),
        ("turn in range(", "turn in range(1, "),
    ):
        assert verify(ir, broken(program, old, new), n_blocks=2) != ""


@pytest.mark.in_ci
@pytest.mark.slow("5 s of interpretation")
def test_quantised_networks_multiply_bytes(tmp_path: Path, verify: Verify) -> None:
    """Convolutions and products of dequantised numbers are of bytes, with their zero points."""
    model = HalfModel()
    codes = np.random.default_rng(0).integers(-127, 128, (16, 16, 3, 3), np.int8)

    def quantised(value: str, scale: float, zero: np.generic) -> str:
        of = [model.constant(np.array(scale, np.float32)), model.constant(np.asarray(zero))]
        return model.add("DequantizeLinear", model.add("QuantizeLinear", value, *of), *of)

    def weight(array: np.ndarray) -> str:
        numbers = (np.full(16, 0.01, np.float32), np.zeros(16, np.int8))
        scales = [model.constant(each) for each in numbers]
        axis = 0 if array.ndim > 2 else 1
        return model.add("DequantizeLinear", model.constant(array), *scales, axis=axis)

    outputs = []
    for zero in (np.int8(0), np.uint8(0), np.uint8(7)):
        value = quantised(model.input(1, 16, 6, 6, kind=TensorProto.FLOAT), 0.02, zero)
        value = model.add("Relu", model.add("Conv", value, weight(codes), pads=[1] * 4))
        value = quantised(model.add("Transpose", value, perm=[0, 2, 3, 1]), 0.05, zero)
        value = quantised(model.add("MatMul", value, weight(codes[..., 0, 0])), 0.05, zero)
        outputs.append(model.add("Cast", value, to=TensorProto.FLOAT16))
    file = model.load(tmp_path, *outputs, shape=(1, 6, 6, 16))
    feeds = {name: draw(1, 16, 6, 6, seed=1) for name in file.inputs}

    matched = _matched(file, verify)
    results, expected = (
        networks.run_module(lower(file, made), file, feeds, _CPU)
        for made in map(make_target, (SPEC, _CPU))
    )

    tasks = worker.extract(file, worker.describe_target("cuda:sm_90").spec).tasks
    products = [task for task in tasks if task.name in matched]
    kernels = [workloads.load(task.ir)["main"] for task in products]
    assert [str(each.dtype) for kernel in kernels for each in kernel.params[:2]] == [
        "uint8",
        "int8",
    ] * 6
    for result, each in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, each)


def _blocked_product(model: HalfModel, n_rows: int, bits: int, *, has_zeros: bool) -> list[str]:
    """Add a product with weights of a few bits, with a scale for each block of 32."""
    drawn = np.random.default_rng(0)
    n_terms, n_columns = 96, 24
    shape = (n_columns, n_terms // 32, 4 * bits)
    scales = model.constant((drawn.random(n_columns * n_terms // 32) / 50).astype(np.float16))
    zeros = drawn.integers(0, 256, n_columns * -(-3 * bits // 8), np.uint8)
    return [
        model.add(
            "MatMulNBits",
            model.input(n_rows, n_terms),
            model.constant(drawn.integers(0, 256, shape, np.uint8)),
            *(scales, *([model.constant(zeros)] if has_zeros else [])),
            domain="com.microsoft",
            K=n_terms,
            N=n_columns,
            bits=bits,
            block_size=32,
        )
    ]


def _dequantised(model: HalfModel, n_rows: int, kind: int) -> list[str]:
    """Add a product with weights of whole numbers, and an activation."""
    limit, axis = (8, 0) if kind == TensorProto.INT4 else (128, 1)
    codes = np.random.default_rng(0).integers(-limit, limit, (128, 24))
    tensor = helper.make_tensor("", kind, codes.shape, codes.flatten().tolist())
    scales = np.abs(draw(24, seed=1)) / 50 + 1e-3
    if axis == 0:  # for each block of 16 terms
        scales = np.abs(draw(8, 24, seed=1)) / 50 + 1e-3
    weight = model.add(
        *("DequantizeLinear", model.constant(tensor), model.constant(scales.astype(np.float16))),
        axis=axis,
        block_size=0 if axis else 16,
    )
    product = model.add("MatMul", model.input(n_rows, 128), weight)
    return [model.add("Relu", model.add("Add", product, model.weight(24)))]


@pytest.mark.parametrize(
    ("add", "dtypes"),
    [
        (
            lambda model: _blocked_product(model, 1, 4, has_zeros=True),
            ["uint8", "float16", "uint8"],
        ),
        (lambda model: _blocked_product(model, 5, 8, has_zeros=False), ["uint8", "float16"]),
        (
            lambda model: _dequantised(model, 1, TensorProto.INT8),
            ["uint8", "float16", "float16"],
        ),
        (
            lambda model: _dequantised(model, 5, TensorProto.INT4),
            ["uint8", "float16", "float16"],
        ),
    ],
    ids=["4 bits with zeros", "8 bits", "columns", "blocks"],
)
def test_weights_stay_packed(
    add: Callable[[HalfModel], list[str]], dtypes: list[str], tmp_path: Path, verify: Verify
) -> None:
    """A product reads its weights as the network stores them, and is computed in half precision."""
    model = HalfModel()
    file = model.load(tmp_path, *add(model))

    (name,) = _matched(file, verify)

    (task,) = worker.extract(file, worker.describe_target("cuda:sm_90").spec).tasks
    parameters = workloads.load(task.ir)["main"].params
    assert "weight_product" in name
    assert [str(each.dtype) for each in parameters] == ["float16", *dtypes, "float16"]


def _matched(file: ModelFile, verify: Verify) -> list[str]:
    """Verify the kernels of a network; return the names of the workloads that have some."""
    tasks = worker.extract(file, worker.describe_target("cuda:sm_90").spec).tasks
    matched = []
    for task in tasks:
        template, match = _template_of(task.ir)
        if template is None:
            continue
        matched.append(task.name)
        if task.flop <= _MAX_FLOP:
            choices = template.ranked(match, 90)
            if template is variants.WINDOWS:  # few blocks are interpreted sooner
                choices = sorted(choices, key=lambda each: -each.rows * each.columns)
            first = choices[0]
            assert verify(task.ir, template.print(match, first)) == "", (task.name, first.name)
    return matched


def _template_of(ir: bytes) -> tuple[variants.Template | None, Any]:
    """Return the first template that fits a workload, and what it matches."""
    pairs = ((each, each.find(workloads.load(ir)["main"])) for each in variants.TEMPLATES)
    return next((pair for pair in pairs if pair[1] is not None), (None, None))
