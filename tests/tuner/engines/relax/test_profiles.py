"""Profiles of workloads, and the peaks of this CPU."""

import math

import onnx
import pytest
from onnx import helper

from tests.tuner.engines.relax.conftest import Array, Save, draw
from tests.tuner.engines.relax.triton.conftest import product
from tuner.engines.base import TargetInfo
from tuner.engines.relax import worker
from tuner.errors import RequestError, WorkError

IMAGE = (1, 16, 14, 14)
FLOAT = 4


def convolution(**attributes: object) -> list[onnx.NodeProto]:
    """Return a convolution with a padded 3x3 window."""
    fixed = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], **attributes}
    return [helper.make_node("Conv", ["data", "w"], ["y"], **fixed)]


@pytest.mark.parametrize(
    ("nodes", "shape", "weights", "expected"),
    [
        (convolution(), IMAGE, {"w": draw(32, 16, 3, 3)}, ("3x3", "dense")),
        (convolution(strides=[2, 2]), IMAGE, {"w": draw(32, 16, 3, 3)}, ("3x3/2", "dense")),
        (convolution(dilations=[2, 2]), IMAGE, {"w": draw(32, 16, 3, 3)}, ("3x3*2", "dense")),
        (convolution(group=16), IMAGE, {"w": draw(16, 1, 3, 3)}, ("3x3", "depthwise")),
        (convolution(group=4), IMAGE, {"w": draw(32, 4, 3, 3)}, ("3x3", "grouped")),
        (
            convolution(kernel_shape=[1, 1], pads=[0, 0, 0, 0]),
            IMAGE,
            {"w": draw(32, 16, 1, 1)},
            ("", "dense"),
        ),
        (
            [helper.make_node("MatMul", ["data", "w"], ["y"])],
            (16, 64),
            {"w": draw(64, 48)},
            ("", "dense"),
        ),
        (
            [helper.make_node("MaxPool", ["data"], ["y"], kernel_shape=[3, 3], strides=[2, 2])],
            (1, 16, 15, 15),
            {},
            ("3x3/2", ""),
        ),
        ([helper.make_node("Exp", ["data"], ["y"])], (8, 100), {}, ("", "")),
    ],
)
def test_window_and_grouping(
    save: Save,
    target: TargetInfo,
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    weights: dict[str, Array],
    expected: tuple[str, str],
) -> None:
    """They follow from the indices of the largest reduction, whatever the operator is called."""
    tasks = worker.extract(save(nodes, shape, weights), target.spec).tasks
    heaviest = max(tasks, key=lambda task: task.flop)

    (profile,) = worker.profile([heaviest.ir])

    assert (profile.window, profile.grouping) == expected
    assert profile.dtype == "float32"


@pytest.mark.parametrize(("dtype", "operands"), [("float16", "float16"), ("float32", "float32")])
def test_operands_are_what_tensor_cores_multiply(dtype: str, operands: str) -> None:
    """Sums of float16 are in float32, which is not the type of the operands."""
    (profile,) = worker.profile([product((1, 8, 24, 40), dtype)])

    assert (profile.operands, profile.dtype) == (operands, "float32")


def test_integers_that_are_scaled_are_no_operands() -> None:
    """A float32 that comes of a byte is multiplied as float32."""
    scaled = product((1, 8, 24, 40), before=lambda value: value.astype("int8").astype("float16"))

    assert worker.profile([scaled])[0].operands == "float16"


def test_traffic_counts_each_argument_once(save: Save, target: TargetInfo) -> None:
    """Input, weights and output of a convolution, however often it reads them."""
    model = save(convolution(), IMAGE, {"w": draw(32, 16, 3, 3)})
    heaviest = max(worker.extract(model, target.spec).tasks, key=lambda task: task.flop)

    (profile,) = worker.profile([heaviest.ir])

    assert profile.n_bytes == FLOAT * (16 * 14 * 14 + 32 * 16 * 9 + 32 * 14 * 14)
    assert profile.input_bytes == FLOAT * (16 * 14 * 14 + 32 * 16 * 9)
    assert profile.output_bytes == FLOAT * 32 * 14 * 14
    assert profile.n_output_elements == 32 * 14 * 14
    assert profile.weight_bytes == FLOAT * 32 * 16 * 9


def test_traffic_of_a_gather_is_what_it_reads(save: Save, target: TargetInfo) -> None:
    """Four rows of a table of a thousand."""
    nodes = [
        helper.make_node("Cast", ["data"], ["i"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["w", "i"], ["y"], axis=0),
    ]
    tasks = worker.extract(save(nodes, (4,), {"w": draw(1000, 64)}), target.spec).tasks
    profiles = worker.profile([task.ir for task in tasks])

    assert max(profile.n_bytes for profile in profiles) <= 2 * FLOAT * 4 * 64 + 4 * (8 + FLOAT)
    assert max(profile.input_bytes for profile in profiles) >= FLOAT * 1000 * 64


@pytest.mark.slow("measures the peaks of this machine for 20 s")
def test_peaks_of_this_cpu(target: TargetInfo) -> None:
    """All are positive; a GPU has none that could be measured."""
    try:
        peaks = worker.measure_peaks(target.spec)
    except WorkError as error:
        pytest.skip(str(error))

    assert set(peaks.flops) == {"float32", "float64"}
    for rate in (*peaks.flops.values(), peaks.cache_bandwidth, peaks.memory_bandwidth):
        assert 0.0 < rate < math.inf
    with pytest.raises(RequestError, match="GPU"):
        worker.measure_peaks('{"kind":"cuda","arch":"sm_90"}')
