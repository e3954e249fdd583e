"""Similarity groups and roofs of tasks."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from records.tasks import WeightedTask
from tuner.tuning.tasks.task_profiles import (
    is_memory_bound,
    loses_weights,
    roof_secs,
    similarity_group,
    task_profiles,
)

PEAKS = {
    "flops": {"float32": 1e11},
    "cache_bytes": 1e6,
    "cache_bandwidth": 1e10,
    "memory_bandwidth": 1e9,
    "weights_kept_secs": math.inf,
}


def task(
    name: str = "conv2d_relu[1x56x56x64]",
    flop: float = 2e8,
    peaks: Mapping[str, Any] | None = PEAKS,
    **profile: Any,
) -> WeightedTask:
    """Return a task with a profile, unless it has no number of bytes."""
    known = {
        "window": "3x3",
        "grouping": "dense",
        "dtype": "float32",
        "n_bytes": 100,
        "variants": {},
        "weight_bytes": 0,
        **profile,
    }
    return WeightedTask(
        task_id=1,
        workload_hash="w",
        name=name,
        weight=1,
        flop=flop,
        engine="relax",
        profile=None if known["n_bytes"] is None else known,
        peaks=peaks,
    )


@pytest.mark.parametrize(
    ("retention", "n_networks", "is_lost"),
    [
        ({"weights_kept_secs": 0.0056}, 1, True),  # 2 ms at the peak, expected to take 2.9 ms
        ({"weights_kept_secs": 0.0058}, 1, False),
        ({"weights_kept_secs": 0.0056}, 2, False),
        (None, 1, False),
    ],
)
def test_others_replace_the_weights_of_a_network_that_takes_long(
    retention: dict[str, float] | None, n_networks: int, *, is_lost: bool
) -> None:
    """Its time is expected from the operations of its tasks."""
    peaks = None if retention is None else PEAKS | retention

    assert loses_weights([task(peaks=None)], peaks, n_networks) is is_lost


@pytest.mark.parametrize(
    ("n_bytes", "n_networks"), [(0.9e6, 1), (1.1e6, 1), (2.1e6, 2), (1.9e6, 2)]
)
def test_a_cache_of_its_own_loses_what_does_not_fit(n_bytes: float, n_networks: int) -> None:
    """The last-level cache of a GPU keeps the weights of a network that is smaller."""
    peaks = PEAKS | {"weights_kept_secs": None}
    tasks = [replace(task(weight_bytes=n_bytes / 2), weight=2)]

    assert loses_weights(tasks, peaks, n_networks) is (n_bytes / n_networks > 1e6)


@pytest.mark.parametrize(
    ("operands", "expected"), [("float16", 2e8 / 4e11), ("int8", 2e8 / 1e11), ("", 2e8 / 1e11)]
)
def test_the_peak_is_that_of_the_operands(operands: str, expected: float) -> None:
    """Products of float16 are fast; without a peak of the operands, that of the sums holds."""
    peaks = PEAKS | {"flops": {"float32": 1e11, "float16": 4e11}}

    assert roof_secs(task(peaks=peaks, operands=operands)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("other", "is_similar"),
    [
        (task(name="conv2d_relu[1x14x14x256]"), True),  # the shape does not count
        (task(flop=2.1e8), True),
        (task(flop=4e8), False),  # over 1.6 times as many operations
        (task(name="conv2d_add_relu[1x56x56x64]"), False),
        (task(window="3x3/2"), False),
        (task(window="1x1"), False),
        (task(grouping="depthwise"), False),
    ],
)
def test_similar_tasks_agree_in_all_but_shape(other: WeightedTask, *, is_similar: bool) -> None:
    """Operators, window, grouping and the magnitude of their operations."""
    assert (similarity_group(task()) == similarity_group(other)) is is_similar


def test_tasks_without_profile_are_similar_by_operators_and_operations() -> None:
    """An engine may fail to profile; a task without operations has a group too."""
    first, second = (task(n_bytes=None, name=f"dense[{n}]") for n in (1, 2))

    assert similarity_group(first) == similarity_group(second)
    assert similarity_group(task(flop=0.0)) != similarity_group(task(flop=1.0))


@pytest.mark.parametrize(
    ("flop", "n_bytes", "dtype", "expected"),
    [
        (2e8, 100, "float32", 2e-3),  # 2e8 / 1e11
        (2e8, 10**6, "float16", 1e-4),  # no peak of float16, and a cache that just suffices
        (2e6, 10**6, "float32", 1e-4),
        (2e6, 10**6 + 1, "float32", 1.000001e-3),  # from memory
    ],
)
def test_the_roof_is_the_slower_of_operations_and_bytes(
    flop: float, n_bytes: int, dtype: str, expected: float
) -> None:
    """Each at the peak of the device."""
    assert roof_secs(task(flop=flop, n_bytes=n_bytes, dtype=dtype)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("n_bytes", "weights", "in_cache", "in_memory"),
    [
        (10**6, {"weight_bytes": 9 * 10**5}, 1e-4, 9e-4),  # 9e5 / 1e9, the rest at the same time
        (10**6, {"weight_bytes": 5 * 10**4}, 1e-4, 1e-4),  # all bytes pass through the cache
        (10**6, {"weight_bytes": 0}, 1e-4, 1e-4),
        (2 * 10**6, {"weight_bytes": 10**6}, 2e-3, 2e-3),  # all from memory in any case
    ],
)
def test_weights_that_others_replace_come_from_memory(
    n_bytes: int, weights: dict[str, Any], in_cache: float, in_memory: float
) -> None:
    """The roof rises to the time in which memory delivers them."""
    kernel = task(flop=1e3, n_bytes=n_bytes, **weights)

    assert roof_secs(kernel) == pytest.approx(in_cache)
    assert roof_secs(kernel, weights_in_memory=True) == pytest.approx(in_memory)


def test_weights_in_memory_may_set_the_roof() -> None:
    """In place of the operations, which take longer than the bytes do in the cache."""
    kernel = task(flop=2e7, n_bytes=10**6, weight_bytes=9 * 10**5)

    assert not is_memory_bound(kernel)
    assert is_memory_bound(kernel, weights_in_memory=True)


@pytest.mark.parametrize(("kept_secs", "roof"), [(0.0028, 9e-4), (0.0030, 1e-4)])
def test_the_roofs_of_a_job_know_where_it_times_weights(kept_secs: float, roof: float) -> None:
    """Tasks that take longer than the retention, of which networks need half, cannot keep them.

    They are expected to take 2 ms at the peak, divided by 0.7, and count as those of two networks.
    """
    peaks = PEAKS | {"weights_kept_secs": kept_secs}
    kernel = task(flop=1e3, peaks=peaks, n_bytes=10**6, weight_bytes=9 * 10**5)

    roofs = task_profiles([kernel, task(flop=1.9e8, peaks=peaks)]).roofs

    assert roofs.tolist() == pytest.approx([roof, 1.9e-3])


def test_an_unknown_or_refuted_roof_is_none() -> None:
    """Without profile or peaks; or if a kernel is faster by more than noise."""
    assert roof_secs(task(n_bytes=None)) == 0.0
    assert roof_secs(task(peaks=None)) == 0.0
    profiles = task_profiles([task()] * 3)
    assert profiles.groups.tolist() == [0, 0, 0]
    assert profiles.credible_roofs([3e-3, 1.9e-3, 1.7e-3]).tolist() == [2e-3, 2e-3, 0.0]


def test_the_roof_is_that_of_the_variant_with_the_fewest_operations() -> None:
    """A variant that computes the same with a quarter of the operations lowers it to a quarter."""
    direct, variants = task(), task(variants={"winograd-4x4": 5e7, "winograd-2x2": 9e7})

    assert roof_secs(variants) == pytest.approx(roof_secs(direct) / 4)
