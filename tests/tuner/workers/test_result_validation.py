"""Validation of worker results, which may be anything."""

from dataclasses import replace
from typing import Any

import pytest

from tests.engines import toy
from tuner.engines.base import RunResult
from tuner.workers import result_validation

DESCRIPTION = toy.describe_target("llvm")


@pytest.mark.parametrize(
    "result",
    [RunResult((10**400,), max_error=0.0), RunResult((1e-3,), max_error=10**400)],
)
def test_numbers_too_large_for_a_database_fail_the_candidate(result: RunResult) -> None:
    """The result becomes a run error, so that trials stored with it are unharmed."""
    assert result_validation.validate_run(result).error_kind == "run_error"


@pytest.mark.parametrize("secs", [0.0, -1e-3, float("inf"), float("nan"), 10**400, "1e-3", None])
def test_samples_that_are_not_durations_fail_the_candidate(secs: Any) -> None:
    """Every sample must be positive and finite, whatever the others are."""
    result = result_validation.validate_run(RunResult((1e-3, secs), max_error=0.0))

    assert (result.error_kind, result.run_secs) == ("run_error", None)
    assert result_validation.validate_run(RunResult((1e-3, 1), max_error=0.0)).run_secs == (1e-3, 1)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        replace(DESCRIPTION, device=None),  # type: ignore[arg-type]
        replace(DESCRIPTION, device={"cores": {1, 2}}),
        replace(DESCRIPTION, device={"mhz": float("nan")}),
        replace(DESCRIPTION, problem=None),  # type: ignore[arg-type]
    ],
)
def test_description_that_cannot_be_compared_or_stored_is_invalid(answer: Any) -> None:
    """Only JSON without NaN, with a text for the problem, describes a target."""
    assert not result_validation.is_valid_description(answer)
    assert result_validation.is_valid_description(DESCRIPTION)
