"""Refusal of workloads whose arguments do not fit."""

from pathlib import Path
from typing import Any

import pytest

from records.tasks import WeightedTask
from tuner.errors import ModelError
from tuner.jobs.models.argument_sizes import check_arguments, sizes_of
from tuner.settings import Settings

GIB = 2**30
SETTINGS = Settings("", Path("/data"), "engine", 2, worker_bytes=8 * GIB)


def task(name: str, profile: dict[str, Any] | None) -> WeightedTask:
    """Return a task with a profile."""
    return WeightedTask(
        task_id=1, workload_hash="w", name=name, weight=1, flop=1.0, engine="e", profile=profile
    )


def square(size: int) -> WeightedTask:
    """Return the activation of a square matrix in float32."""
    n_bytes = 4 * size**2
    profile = {"input_bytes": n_bytes, "output_bytes": n_bytes, "n_output_elements": size**2}
    return task(f"relu[{size}x{size}]", profile)


def test_the_message_has_the_sizes_of_the_largest_workload() -> None:
    """An owner sees what to make smaller, an operator what to raise."""
    with pytest.raises(ModelError) as refused:
        check_arguments([square(16), square(65536), square(30000)], SETTINGS)

    assert refused.value.code == "arguments-too-large"
    for part in ("relu[65536x65536]", "inputs take 16 GiB", "float64 64 GiB", "may use 8 GiB"):
        assert part in str(refused.value)


def test_expected_outputs_that_no_answer_holds_are_refused() -> None:
    """They fit into the memory of a large machine, but not into a message of a worker."""
    large = Settings("", Path("/data"), "engine", 2, worker_bytes=1000 * GIB)
    check_arguments([square(16000)], large)

    with pytest.raises(ModelError, match=r"float64 take 4\.29 GiB, .* at most 4 GiB") as refused:
        check_arguments([square(16), square(16971)], large)
    assert refused.value.code == "arguments-too-large"


def test_workloads_that_fit_or_have_no_profile_are_measured() -> None:
    """Without a profile the sizes are unknown, and the limits of the processes hold alone."""
    check_arguments([], SETTINGS)
    check_arguments([square(16000), task("sort", None)], SETTINGS)
    assert sizes_of(task("sort", None)).total == 0
