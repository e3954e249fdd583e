"""Winograd's convolution: matrices, programs, schedules, and what they compute."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import pytest
import tvm
from onnx import helper
from tvm.s_tir import Schedule

from tests.tuner.engines.relax.conftest import Save, built_candidate, described, draw
from tuner.engines.base import (
    ExtractedTask,
    ObjectRequest,
    TargetInfo,
)
from tuner.engines.relax import worker
from tuner.engines.relax.codegen import build
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.run import reference
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import Registers
from tuner.engines.relax.schedules.variants import winograd_schedule
from tuner.engines.relax.schedules.variants.winograd import Winograd
from tuner.engines.relax.schedules.variants.winograd_schedule import Choice, Sizes
from tuner.engines.relax.schedules.variants.winograd_transforms import matrices
from tuner.engines.relax.target.targets import make_target
from tuner.engines.verification import checks

LANES = 16


def convolution(
    save: Save,
    target: TargetInfo,
    shape: tuple[int, ...] = (1, 16, 8, 8),
    c_out: int = 16,
    nodes: tuple[onnx.NodeProto, ...] = (),
    **attributes: Any,
) -> ExtractedTask:
    """Return the task of a convolution of 3 by 3 named ``c`` and what follows it."""
    groups = int(attributes.get("group", 1))
    kernel = attributes.pop("kernel_shape", [3, 3])
    attributes = {"pads": [1, 1, 1, 1], "kernel_shape": kernel, **attributes}
    output = "c" if nodes else "y"
    first = helper.make_node("Conv", ["data", "w", "b"], [output], **attributes)
    weights = {"w": draw(c_out, shape[1] // groups, *kernel), "b": draw(c_out, seed=1)}
    extraction = worker.extract(save([first, *nodes], shape, weights), target.spec)
    return max(extraction.tasks, key=lambda task: task.flop)


def test_larger_tiles_magnify_errors_more() -> None:
    """The growth that the documentation states, for tiles of 2 by 2 and of 4 by 4."""
    assert math.ceil(matrices(2).growth) == 8
    assert math.ceil(matrices(4).growth) == 63


RESIDUAL = (
    helper.make_node("Add", ["c", "data"], ["s"]),
    helper.make_node("Relu", ["s"], ["y"]),
)


class Case(NamedTuple):
    """A convolution and a schedule of one of its variants."""

    n_outputs: int
    band: tuple[int, int] | None
    shape: tuple[int, ...]
    nodes: tuple[onnx.NodeProto, ...] = ()
    pads: tuple[int, ...] = (1, 1, 1, 1)


@pytest.mark.parametrize(
    "case",
    [
        Case(4, None, (1, 16, 7, 6), (), (2, 1, 0, 1)),
        Case(4, (1, 2), (2, 16, 8, 8), RESIDUAL),
    ],
)
def test_a_kernel_agrees_with_the_definition(
    save: Save, target: TargetInfo, tmp_path: Path, case: Case
) -> None:
    """With padding, odd sizes, several images, a residual and both forms of schedule."""
    task = convolution(save, target, case.shape, nodes=case.nodes, pads=list(case.pads))
    variant = Winograd(case.n_outputs)
    program = variant.rewrite(workloads.load(task.ir))
    assert program is not None
    schedule = Schedule(program)
    winograd_schedule.apply(schedule, Choice((1, 1, 1), case.band), LANES)

    error = measured_error(task, traces.dump(schedule.trace, variant.name), target, tmp_path)

    assert error < 1e-5


def measured_error(task: ExtractedTask, trace: str, target: TargetInfo, folder: Path) -> float:
    """Build a candidate, compare it on both sets of inputs, and return its relative error."""
    verdict = checks.check(*built_candidate(task, trace, target, folder))
    assert not verdict.error_kind, verdict.error_text
    assert verdict.max_error is not None
    return verdict.max_error


def test_weights_of_a_tile_follow_each_other(
    save: Save, target: TargetInfo, tmp_path: Path
) -> None:
    """A tile of half a panel has a panel of its own, so that its weights are one stream."""
    task = convolution(save, target, c_out=32)
    program = Winograd(2).rewrite(workloads.load(task.ir))
    assert program is not None
    schedule = Schedule(program)
    winograd_schedule.apply(schedule, Choice((1, 2, 1), None), LANES)

    _, packed = build.split_packing(schedule.mod["main"])
    error = measured_error(task, traces.dump(schedule.trace, "winograd-2x2"), target, tmp_path)

    assert [entry["shape"] for entry in packed] == [[16, 1, 2, 16, LANES]]
    assert error < 1e-5


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [2, 2]},
        {"dilations": [2, 2], "pads": [2, 2, 2, 2]},
        {"group": 2},
        {"kernel_shape": [3, 1], "pads": [1, 0, 1, 0]},
        {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]},
    ],
)
def test_other_convolutions_have_no_variant(
    save: Save, target: TargetInfo, attributes: dict[str, Any]
) -> None:
    """Strides, dilations, groups and other windows stay direct."""
    task = convolution(save, target, (1, 32, 12, 12), 32, **attributes)

    assert Winograd(4).rewrite(workloads.load(task.ir)) is None


def test_computed_weights_have_no_variant(save: Save, target: TargetInfo) -> None:
    """Weights that the network computes cannot be transformed beforehand."""
    task = convolution(save, target)
    module = workloads.load(task.ir)
    bare = tvm.IRModule({"main": module["main"].without_attr("layout_free_buffers")})

    assert Winograd(4).rewrite(bare) is None


SIZES = Sizes(n_products=36, batch=1, rows=14, columns=14, c_in=64, c_out=64, panel=64)
WIDE = Registers(32, 16)


def test_large_images_are_cut_into_bands() -> None:
    """For few channels the weights stay in the private cache; for many they are read once."""
    few = min(candidates(SIZES), key=lambda choice: cycles(choice, SIZES))
    many_sizes = SIZES._replace(rows=4, columns=4, c_in=256, c_out=256)
    many = min(candidates(many_sizes), key=lambda choice: cycles(choice, many_sizes))

    assert few.band is not None
    assert many.band is None


def cycles(choice: Choice, sizes: Sizes) -> float:
    """Return the estimate on two cores with AVX-512."""
    return winograd_schedule.estimate_cycles(choice, sizes, WIDE, 2)


def candidates(sizes: Sizes) -> list[Choice]:
    """Return all choices on two cores with AVX-512."""
    return winograd_schedule.choices(sizes, WIDE, 2)


def test_the_sums_of_a_tile_fit_the_registers() -> None:
    """No choice keeps more sums than registers less those of operands, and all are distinct."""
    every = candidates(SIZES)

    assert len(set(every)) == len(every)
    assert all(math.prod(choice.tile) <= 28 for choice in every)
    assert max(math.prod(choice.tile) for choice in every[:3]) > 8


def test_the_estimate_favours_large_images() -> None:
    """With tiles of 4 by 4, the last stage of ResNet-18 stays direct: its weights are large."""
    stages = [(14, 64), (7, 128), (4, 256), (2, 512)]

    gains = [
        winograd_schedule.estimate_gain(
            Sizes(36, 1, n_tiles, n_tiles, channels, channels, 64),
            (56 * 64 // channels) ** 2,
            WIDE,
            2,
        )
        for n_tiles, channels in stages
    ]

    assert gains == sorted(gains, reverse=True)
    assert gains[1] > 1.5
    assert gains[3] < 1.0


def test_the_estimate_takes_weights_from_memory() -> None:
    """For maps of 14 by 14, tiles of 2 by 2 read fewer weights; maps of 7 by 7 stay direct."""

    def gain(m: int, size: int, channels: int) -> float:
        n_tiles = -(-size // m)
        sizes = Sizes((m + 2) ** 2, 1, n_tiles, n_tiles, channels, channels, 64)
        return winograd_schedule.estimate_gain(sizes, size**2, WIDE, 2)

    assert gain(2, 14, 256) > gain(4, 14, 256) > 1.2
    assert 1.2 > gain(2, 7, 512) > gain(4, 7, 512)


@pytest.mark.parametrize(
    ("mcpu", "packed"),
    [("haswell", [36, 1, 2, 32, 16]), ("skylake-avx512", [36, 1, 32, 32])],
)
def test_a_fallback_is_a_variant_where_that_is_much_faster(
    save: Save, tmp_path: Path, mcpu: str, packed: list[int]
) -> None:
    """Its object takes transformed weights; a small convolution stays direct."""
    target = described(mcpu)
    if not reference.runs_here(target.spec):
        pytest.skip("such a schedule is verified by running it")
    large = convolution(save, target, (1, 32, 32, 32), 32)
    small = convolution(save, target, (1, 16, 8, 8), 16)
    request = ObjectRequest(large.ir, target.spec, "", "kernel", str(tmp_path))

    compiled = worker.compile_subgraph(request)

    assert [entry["shape"] for entry in compiled.info["packed"]] == [packed]
    assert compiled.info["variant"] == "winograd-4x4", "manifests and profiles name it"
    assert compiled.info["n_parallel"] > 1
    assert not ranking.compute_variant(workloads.load(small.ir), make_target(target.spec))
