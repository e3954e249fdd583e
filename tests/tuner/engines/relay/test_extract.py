"""Networks are split into the weighted tasks of the public tutorial on Ansor."""

import json
from pathlib import Path

import pytest
from onnx import helper

from tests.environments import needs_relay
from tests.tuner.engines.relay.conftest import INSIDE, Call, Save, draw
from tuner.engines.base import Extraction, ModelFile, TargetInfo
from tuner.errors import ModelError, TargetError
from tuner.networks.load import load_network
from tuner.workers.pool import Pool

pytestmark = needs_relay

# Of "Auto-scheduling a Neural Network for x86 CPU", in no order: inputs, then the output.
TUTORIAL = [
    [[1, 1000], [1, 1000]],
    [[1, 512], [1000, 512], [1, 1000], [1, 1000]],
    [[1, 7, 7, 512], [1, 1, 1, 512]],
    [
        [1, 7, 7, 512],
        [3, 3, 512, 512],
        [1, 7, 7, 512],
        [1, 1, 1, 512],
        [1, 1, 1, 512],
        [1, 7, 7, 512],
    ],
    [[1, 7, 7, 512], [3, 3, 512, 512], [1, 7, 7, 512], [1, 7, 7, 512]],
    [[1, 7, 7, 512], [3, 3, 512, 512], [1, 1, 1, 512], [1, 7, 7, 512]],
    [[1, 14, 14, 256], [3, 3, 256, 512], [1, 1, 1, 512], [1, 7, 7, 512]],
    [[1, 14, 14, 256], [1, 1, 256, 512], [1, 7, 7, 512]],
    [[1, 14, 14, 256], [6, 6, 256, 256], [1, 14, 14, 256], [1, 1, 1, 256], [1, 14, 14, 256]],
    [[1, 14, 14, 256], [6, 6, 256, 256], [1, 14, 14, 256], [1, 14, 14, 256]],
    [[1, 14, 14, 256], [6, 6, 256, 256], [1, 1, 1, 256], [1, 14, 14, 256]],
    [[1, 28, 28, 128], [3, 3, 128, 256], [1, 1, 1, 256], [1, 14, 14, 256]],
    [[1, 28, 28, 128], [1, 1, 128, 256], [1, 14, 14, 256]],
    [[1, 28, 28, 128], [6, 6, 128, 128], [1, 28, 28, 128], [1, 1, 1, 128], [1, 28, 28, 128]],
    [[1, 28, 28, 128], [6, 6, 128, 128], [1, 28, 28, 128], [1, 28, 28, 128]],
    [[1, 28, 28, 128], [6, 6, 128, 128], [1, 1, 1, 128], [1, 28, 28, 128]],
    [[1, 56, 56, 64], [3, 3, 64, 128], [1, 1, 1, 128], [1, 28, 28, 128]],
    [[1, 56, 56, 64], [1, 1, 64, 128], [1, 28, 28, 128]],
    [[1, 56, 56, 64], [3, 3, 64, 64], [1, 56, 56, 64], [1, 1, 1, 64], [1, 56, 56, 64]],
    [[1, 56, 56, 64], [3, 3, 64, 64], [1, 56, 56, 64], [1, 56, 56, 64]],
    [[1, 56, 56, 64], [3, 3, 64, 64], [1, 1, 1, 64], [1, 56, 56, 64]],
    [[1, 56, 56, 64], [1, 1, 64, 64], [1, 56, 56, 64]],
    [[1, 112, 112, 64], [1, 1, 1, 64], [1, 56, 56, 64]],
    [[1, 224, 224, 3], [7, 7, 3, 64], [1, 1, 1, 64], [1, 112, 112, 64]],
]


def cleaned(query: str, folder: Path) -> ModelFile:
    """Return a zoo network in the form that engines receive."""
    network = load_network(f"zoo:{query}")
    path = folder / "model.onnx"
    path.write_bytes(network.model)
    inputs = {name: (spec.shape, spec.dtype) for name, spec in network.inputs.items()}
    return ModelFile(str(path), "onnx", inputs)


@pytest.mark.slow("25 s: Relay extracts ResNet-18")
def test_resnet_gives_the_tasks_of_the_tutorial(
    engine: Call, pool: Pool, target: TargetInfo, tmp_path: Path
) -> None:
    """There are twenty-four, with the tutorial's shapes, one of them twice."""
    model = cleaned("resnet-18?batch=1&layout=NHWC", tmp_path)

    extraction: Extraction = engine("extract", model, target.spec)

    keys = [json.loads(pool.call(INSIDE, "key_of", task.ir)) for task in extraction.tasks]
    assert sorted(shapes for _, *shapes in keys) == sorted(TUTORIAL)
    assert sorted(task.weight for task in extraction.tasks) == [1] * 23 + [2]
    assert extraction.n_kernel_calls == 25
    # Of the weights Winograd transforms, three by three become six by six.
    assert sum("winograd" in task.name for task in extraction.tasks) == 6


@pytest.mark.slow("minutes: every network of the zoo")
@pytest.mark.parametrize("image", [32, 224])
def test_a_zoo_network_is_that_of_relay_testing(
    engine: Call, pool: Pool, target: TargetInfo, tmp_path: Path, image: int
) -> None:
    """Its workloads are identical, so that logs of others match."""
    extraction: Extraction = engine(
        "extract", cleaned(f"resnet-18?image={image}", tmp_path), target.spec
    )

    ours = sorted(task.workload for task in extraction.tasks)

    assert ours == pool.call(INSIDE, "keys_of_testing", image, target.spec)


def test_an_unknown_operator_is_named(engine: Call, target: TargetInfo, save: Save) -> None:
    """The model is refused, and the message gives the reason."""
    model = save([helper.make_node("Det", ["data"], ["y"])], (2, 3, 3), {})

    with pytest.raises(ModelError, match="Det"):
        engine("extract", model, target.spec)


def test_a_shape_that_depends_on_data_is_refused(
    engine: Call, target: TargetInfo, save: Save
) -> None:
    """Ansor tunes kernels of fixed shapes."""
    nodes = [
        helper.make_node("NonZero", ["data"], ["n"]),
        helper.make_node("Cast", ["n"], ["y"], to=1),
    ]

    with pytest.raises(ModelError, match="depends on its data"):
        engine("extract", save(nodes, (4, 4), {}), target.spec)


def test_another_format_is_refused(engine: Call, target: TargetInfo, tmp_path: Path) -> None:
    """The message gives the remedy."""
    model = ModelFile(str(tmp_path / "model.pt2"), "pt2", {"x": ((1, 2), "float32")})

    with pytest.raises(ModelError, match=r"not \.pt2; export the model to ONNX"):
        engine("extract", model, target.spec)


def test_a_task_is_described(engine: Call, target: TargetInfo, save: Save) -> None:
    """It has a name and a definition in TVM's notation."""
    model = save([helper.make_node("MatMul", ["data", "w"], ["y"])], (4, 8), {"w": draw(8, 6)})
    extraction: Extraction = engine("extract", model, target.spec)
    (task,) = extraction.tasks

    (definition,) = engine("define", [task.ir])

    assert task.name == "dense[4x6]"
    assert task.flop == 2 * 4 * 8 * 6
    assert "T_matmul_NT(i0, i1) +=" in definition


def test_this_cpu_is_a_target(engine: Call, target: TargetInfo) -> None:
    """Its canonical form is a fixed point, and has the number of cores to search for."""
    written = json.loads(target.spec)

    assert (written["kind"], target.problem) == ("llvm", "")
    assert written["num-cores"] >= 1
    assert target.device["tvm"] == "0.19.0"
    assert engine("describe_target", target.spec) == target


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cuda", "compiled without CUDA"),
        ("cuda:sm_90", "compiled without CUDA"),
        ('{"kind":"c"}', "kind 'c' is not supported"),
        ("nonsense", "unknown target 'nonsense'"),
        ("{", "not valid JSON"),
        ('{"kind":"llvm","system-lib":true}', "may not set 'system-lib'"),
        ("llvm -cl-opt=-print-after-all", "as JSON"),
        ('{"kind":"llvm","mcpu":"abacus"}', "knows no CPU 'abacus'"),
    ],
)
def test_other_targets_are_refused(engine: Call, spec: str, message: str) -> None:
    """Each error has its reason."""
    with pytest.raises(TargetError, match=message):
        engine("describe_target", spec)
