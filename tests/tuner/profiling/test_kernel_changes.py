"""Kernels of two libraries are timed in turns, and paired by their workloads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli import Cli
from tests.tuner.profiling.small_profile import PROFILE
from tuner.compile.bench.gate import UNDECIDED
from tuner.profiling.kernel_changes import find_changes
from tuner.profiling.results import KernelProfile, LibraryProfile, as_json

_TURNS = (1.00, 1.01, 0.99, 1.02, 1.00, 0.98, 1.01, 1.00)


def kernel(workload: str, secs: float = 1.0, **changes: object) -> KernelProfile:
    """Return the profile of a kernel whose turns spread by a few per cent."""
    turns = tuple(secs * factor for factor in _TURNS)
    own = replace(PROFILE.kernels[0], workload=workload, secs=secs, turn_secs=turns, code="c")
    return replace(own, **changes)  # type: ignore[arg-type]


def library(*kernels: KernelProfile, run: float = 1.0) -> LibraryProfile:
    """Return the profile of a library with some kernels."""
    turns = tuple(run * factor for factor in _TURNS)
    return replace(PROFILE, kernels=kernels, turn_secs=turns)


def test_kernels_are_sorted_by_their_cost() -> None:
    """Those that run in one library cost their time; one that is faster comes last."""
    a = library(kernel("same"), kernel("slow"), kernel("fast"), kernel("gone", 0.5))
    b = library(
        kernel("fast", 0.5, trace="t2", code="d"),
        kernel("same"),
        kernel("slow", 1.5, code="d"),
        kernel("new", 0.2),
    )

    changes = find_changes(a, b, 0.03)

    assert [(each.workload, each.outcome, each.code) for each in changes.kernels] == [
        ("slow", "slower", "changed"),
        ("new", "only in B", ""),
        ("same", "equal", "same"),
        ("fast", "faster", "other record"),
        ("gone", "only in A", ""),
    ]
    assert [each.cost_secs for each in changes.kernels] == pytest.approx([0.5, 0.2, 0, -0.5, -0.5])


def test_a_noisy_kernel_is_unclear() -> None:
    """Its interval contains the limit."""
    noisy = kernel("noisy", turn_secs=(0.9, 1.2, 1.0, 1.3, 0.8, 1.1, 0.9, 1.2))

    (change,) = find_changes(library(kernel("noisy")), library(noisy), 0.03).kernels

    assert change.outcome == "unclear"


def test_costs_and_changes_are_of_the_same_turns() -> None:
    """Medians of both sides may differ the other way, if only some turns were disturbed."""
    then = kernel("a", turn_secs=(1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0))
    now = kernel("a", turn_secs=(5.0, 5.0, 5.0, 0.9, 0.9, 4.0, 4.0, 4.0))

    (change,) = find_changes(library(then), library(now), 0.03).kernels

    assert ((change.a_secs or 0.0), (change.b_secs or 0.0)) == (1.0, 4.0)
    assert change.change is not None
    assert (change.change, change.cost_secs) == pytest.approx((-0.1, -0.1))


@pytest.mark.parametrize(("run", "status"), [(1.0, 0), (0.5, 0), (1.2, 4), (1.03, UNDECIDED)])
def test_the_exit_status_is_that_of_the_run(run: float, status: int) -> None:
    """Kernels explain it; a single one that is slower does not fail a run that is not."""
    noise = tuple(factor * _TURNS[index - 1] for index, factor in enumerate(_TURNS))
    b = library(kernel("slow", 1.5), run=run)
    b = replace(b, turn_secs=tuple(run * factor for factor in noise))

    assert find_changes(library(kernel("slow")), b, 0.03).exit_code == status


def test_other_networks_and_threads_are_listed() -> None:
    """They explain a change better than any kernel."""
    other = replace(library(kernel("a")), model_name="other", n_threads=4)

    assert find_changes(library(kernel("a")), other, 0.03).differs == {
        "network": ("network of s0", "other"),
        "threads": (2, 4),
    }


def test_a_kernel_without_time_is_compared() -> None:
    """Calls that launch nothing may take none before, after, or both."""
    none = kernel("none", turn_secs=(0.0,) * 8)

    changes = find_changes(library(none), library(kernel("none")), 0.03)

    assert [each.outcome for each in changes.kernels] == ["slower"]
    assert find_changes(library(none), library(none), 0.03).kernels[0].outcome == "equal"


def test_a_profile_of_few_runs_is_refused(tmp_path: Path) -> None:
    """Few turns have no interval, so that noise would decide the exit status."""
    (tmp_path / "old.json").write_text(json.dumps(as_json(replace(library(), turn_secs=(1.0,)))))
    answer = Cli(tmp_path, {})("bisect", "old.json", "new")

    assert answer.status == 2
    assert "old.json has too few runs" in answer.complaint


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--runs", "39"), "--runs must be at least 40, got 39"),
        (("--max-slowdown", "x"), "--max-slowdown must be a share"),
        ((), "old.json is not a profile of this version of the tuner"),
    ],
)
def test_wrong_requests(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    """The message names the option or the file."""
    (tmp_path / "old.json").write_text("{}")
    answer = Cli(tmp_path, {})("bisect", "old.json", "new", *arguments)

    assert answer.status == 2
    assert complaint in answer.complaint
