"""Order of configurations: near to what an H200 measured, of what a GPU can run."""

from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from tests.tuner.engines.relax.triton.conftest import (
    attention,
    convolution,
    match,
    product,
    workload,
)
from tuner.engines.relax import worker
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.target.targets import make_target
from tuner.engines.relax.triton import gpus, ranking, variants
from tuner.engines.relax.triton.templates.attention import Attention, estimate_secs
from tuner.engines.relax.triton.templates.attention import Configuration as Attended
from tuner.engines.relax.triton.templates.configurations import Configuration
from tuner.engines.relax.triton.templates.contractions import Contraction

# Shapes (batches, rows, columns, steps), and microseconds of configurations on an H200.
_MEASURED = [
    (
        (1, 128, 2304, 768),
        {
            "64-64-128-4-4-sk1": 4.16, "64-64-128-5-4-sk1": 4.18, "64-64-64-5-4-sk1": 4.31,
            "64-64-128-4-8-sk1": 4.54, "64-64-64-3-4-sk1": 6.06, "64-128-128-2-8-sk2": 7.10,
            "64-64-128-2-4-sk1": 7.15, "16-128-32-3-8-sk4": 9.26, "64-32-16-2-4-sk2": 16.78,
        },
    ),
    (
        (1, 128, 768, 768),
        {
            "64-16-128-5-4-sk1": 3.40, "64-16-128-4-4-sk1": 3.60, "64-16-128-5-8-sk1": 3.86,
            "32-32-128-5-8-sk1": 4.18, "16-64-128-3-8-sk1": 4.51, "32-32-32-4-4-sk2": 5.31,
        },
    ),
    (
        (1, 128, 768, 3072),
        {
            "64-128-64-4-4-sk8": 5.97, "64-128-128-4-4-sk8": 6.38, "128-64-128-4-8-sk4": 7.16,
            "128-128-64-3-8-sk16": 7.72, "32-256-16-4-8-sk16": 9.29, "128-128-16-4-8-sk2": 25.53,
        },
    ),
    (
        (1, 8, 4096, 4096),
        {
            "16-64-128-3-4-sk4": 10.94, "16-128-64-5-4-sk4": 11.07, "16-64-128-5-4-sk4": 11.11,
            "16-256-64-4-8-sk16": 12.23, "16-256-32-3-4-sk8": 14.89, "16-128-32-5-4-sk8": 13.56,
        },
    ),
    (
        (1, 2048, 2048, 2048),
        {
            "128-256-64-3-8-sk1": 25.30, "128-128-64-3-4-sk1": 25.58, "128-256-64-2-8-sk1": 34.55,
            "64-128-64-5-4-sk2": 53.93, "64-256-128-2-8-sk8": 123.09, "16-64-16-3-4-sk1": 283.36,
        },
    ),
    (
        (1, 1, 768, 768),
        {
            "1-16-128-1-8-sk1": 2.44, "1-16-64-1-4-sk2": 2.72, "1-32-64-1-8-sk4": 3.15,
            "1-64-64-1-4-sk4": 3.35, "1-256-32-1-8-sk8": 3.86, "1-256-32-1-4-sk4": 6.44,
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "measured"), _MEASURED, ids=lambda each: str(each)[:20])
def test_estimates_are_near_to_measurements(shape: Any, measured: dict[str, float]) -> None:
    """The fastest by estimate is within 10 % of the best, and times are within 25 % on average."""
    names = [Configuration.named(f"{Configuration.family}-{name}-rows") for name in measured]
    decisions = np.array([list(vars(each).values())[:-1] for each in names], dtype=int)
    times = np.array(list(measured.values())) * 1e-6

    contraction = match(Contraction, product(shape, transposed=True))
    secs = ranking.estimate_secs(contraction, decisions, gpus.gpu_of(90))

    assert times[secs.argmin()] < 1.1 * times.min()
    assert np.abs(np.log(secs / times)).mean() < np.log(1.25)


# Keys and rows of 12 heads, and microseconds of an attention on an H200.
_ATTENTION = {
    197: {
        "32-128-2-4": 4.07, "64-64-2-8-sl2": 5.36, "64-128-1-8-sk2": 5.76, "128-32-3-8": 6.08,
        "128-32-2-8-sl4": 6.37, "64-32-1-4-sk3": 6.59, "128-32-3-4-sl2": 6.81, "32-64-1-8": 7.21,
        "32-32-1-8-sl3": 7.54, "64-32-1-8-sl7": 8.15, "128-32-1-8-sl7": 9.68,
    },
    128: {
        "16-128-1-4": 2.39, "32-64-2-4": 3.19, "64-64-1-4-sl2": 3.68, "64-64-1-4-sk2": 3.90,
        "16-32-2-4-sl2": 4.21, "128-32-1-4-sk4": 4.35, "16-32-1-8-sk4": 4.51,
        "128-64-1-8-sk2": 4.71, "128-64-1-4-sl2": 4.97, "128-32-1-4-sl4": 5.23,
    },
}  # fmt: skip


@pytest.mark.parametrize("n_rows", _ATTENTION)
def test_estimates_of_attention_are_near_to_measurements(n_rows: int) -> None:
    """The fastest by estimate is the best, and times are within 12 % on average."""
    names = [Attended.named(f"{Attended.family}-{name}") for name in _ATTENTION[n_rows]]
    decisions = np.array([list(vars(each).values()) for each in names], dtype=int)
    times = np.array(list(_ATTENTION[n_rows].values())) * 1e-6
    matched = match(Attention, attention((12, 12), (n_rows, n_rows, 64)))

    secs = estimate_secs(matched, decisions, gpus.gpu_of(90))

    assert secs.argmin() == times.argmin()
    assert np.abs(np.log(secs / times)).mean() < np.log(1.12)


@pytest.mark.parametrize("architecture", [80, 86, 89, 90, 100, 120])
@pytest.mark.parametrize(
    "ir",
    [
        *(product((1, 4096, 4096, 4096)), product((1, 1, 4096, 4096))),
        *(convolution(56, (64, 64), 3), product((1, 8, 10, 4096), "float32")),
    ],
    ids=["large", "row", "window", "small"],
)
def test_spaces_fit_the_gpu(ir: bytes, architecture: int) -> None:
    """Configurations differ, are few enough to be estimated at once, and fit shared memory."""
    contraction, gpu = match(Contraction, ir), gpus.gpu_of(architecture)

    configurations = ranking.ranked(contraction, architecture)

    assert 20 < len(configurations) == len(set(configurations)) < 3000
    for by in configurations if contraction.n_rows > 1 else ():
        n_turns = -(-contraction.n_steps // by.steps)
        n_bytes = 2 * (by.rows + by.columns) * by.steps * min(by.n_stages, n_turns)
        assert n_bytes <= gpu.shared_bytes


@pytest.mark.parametrize(
    ("tag", "number", "n_multiprocessors", "bytes_per_sec"),
    [("nvidia/geforce-rtx-4090", 89, 128, 1.0e12), ("nvidia/nvidia-h100", 90, 132, 3.35e12)],
)
def test_gpus_of_one_architecture_differ(
    tag: str, number: int, n_multiprocessors: int, bytes_per_sec: float
) -> None:
    """A target that tells its cache has the numbers of its own data sheet."""
    target = make_target(worker.describe_target(tag).spec)
    module = workloads.load(product((1, 128, 2304, 768), transposed=True))

    gpu = gpus.gpu_of(*variants.gpu_key(target))

    assert (gpu.n_multiprocessors, gpu.bytes_per_sec) == (n_multiprocessors, bytes_per_sec)
    assert gpu != gpus.gpu_of(number)
    (first, *_), matched = variants.GEMM.choices(module, target), variants.GEMM.find(module["main"])
    secs = ranking.estimate_secs(matched, np.array([[*vars(first).values()][:7]]), gpu)
    others = [ranking.ranked(matched, each)[0] for each in (80, 86, 89, 90)]
    decisions = np.array([[*vars(each).values()][:7] for each in others])
    assert secs <= ranking.estimate_secs(matched, decisions, gpu).min()


def test_loads_that_are_not_asynchronous_gain_nothing_from_stages() -> None:
    """Stages beyond two take no less time where each element is loaded alone."""
    contraction = match(Contraction, convolution(224, (3, 64), 7, stride=2))
    decisions = np.array([[128, 64, 64, stages, 4, 1, 0] for stages in (2, 5)])

    two, five = ranking.estimate_secs(contraction, decisions, gpus.gpu_of(90))

    assert two <= five


def test_windows_have_thirds() -> None:
    """Nine turns of a window of three by three have no other parts."""
    contraction = match(Contraction, convolution(14, (64, 64), 3))

    ranked = ranking.ranked(contraction, 90)

    assert {each.n_splits for each in ranked if each.steps == 64} == {1, 3}


def test_steps_of_two_taps_at_once_are_not_chosen() -> None:
    """Elements of a padded image are loaded one by one where a turn goes through several taps."""
    contraction = match(Contraction, convolution(56, (64, 64), 3))

    assert {each.steps for each in ranking.ranked(contraction, 90)[:8]} <= {32, 64}


def test_two_warps_multiply_without_a_group() -> None:
    """A tile of 64 rows needs the four warps of a group: 5.4 us without, 3.4 us with one."""
    contraction = match(Contraction, product((1, 196, 512, 1024), transposed=True))
    decisions = np.array([[64, 16, 128, 5, n_warps, 1, 0] for n_warps in (2, 4)])

    two, four = ranking.estimate_secs(contraction, decisions, gpus.gpu_of(90))

    assert two > 1.05 * four


def test_a_second_kernel_adds_parts_of_large_tiles() -> None:
    """Few blocks read them at a lower rate: those of 72 tiles of 128 x 64 took 5 us more."""
    contraction = match(Contraction, product((1, 197, 2304, 768)))
    decisions = np.array([[128, 64, 64, 3, 4, 4, is_one_kernel] for is_one_kernel in (0, 1)])

    second, last = ranking.estimate_secs(contraction, decisions, gpus.gpu_of(90))

    assert last > second


def test_functions_take_time_where_they_are_called() -> None:
    """A second kernel calls erf for few sums of a thread, the last block for a whole tile."""
    plain, called = (
        match(Contraction, product((1, 196, 256, 2304), after=after)) for after in (None, tirx.erf)
    )
    decisions = np.array([[64, 64, 64, 4, 4, 4, is_one_kernel] for is_one_kernel in (0, 1)])

    second, last = ranking.estimate_secs(called, decisions, gpus.gpu_of(90)) - (
        ranking.estimate_secs(plain, decisions, gpus.gpu_of(90))
    )

    assert last > second == 0


@pytest.mark.parametrize("shape", [(196, 256, 2304), (49, 512, 4608), (49, 512, 2048)])
def test_the_last_block_adds_parts_of_small_tiles(shape: tuple[int, int, int]) -> None:
    """Convolutions of ResNet-50 at 14 x 14 and 7 x 7 have one kernel each."""
    contraction = match(Contraction, product((1, *shape), transposed=True))

    first = ranking.ranked(contraction, 90)[0]

    assert first.n_splits > 1
    assert first.is_one_kernel


def test_packed_weights_take_less_time() -> None:
    """A step of a decoder takes as long as its weights take to be read."""
    codes, scales = te.placeholder((8192, 8192), "uint8"), te.placeholder((8192,), "float16")
    data, k = te.placeholder((1, 8192), "float16"), te.reduce_axis((0, 8192), "k")

    def multiplied(i: Any, j: Any) -> Any:
        weight = (codes[j, k].astype("float32") * scales[j].astype("float32")).astype("float16")
        return te.sum(data[i, k].astype("float32") * weight.astype("float32"), axis=k)

    packed = workload([data, codes, scales, te.compute((1, 8192), multiplied)])
    secs = []
    for ir in (packed, product((1, 1, 8192, 8192), transposed=True)):
        contraction = match(Contraction, ir)
        first = ranking.ranked(contraction, 90)[0]
        decisions = np.array([[*vars(first).values()][:7]], dtype=float)
        secs += list(ranking.estimate_secs(contraction, decisions, gpus.gpu_of(90)))

    assert secs[0] < 0.7 * secs[1]
