"""What workers answer, which may be anything."""

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
def test_numbers_that_no_database_has_room_for_are_an_error(result: RunResult) -> None:
    """Of the candidate, which harms no trial that is stored beside it."""
    assert result_validation.checked(result).error_kind == "run_error"


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
def test_what_cannot_be_compared_or_stored_is_no_description(answer: Any) -> None:
    """A device that says so is asked again later."""
    assert not result_validation.is_description(answer)
    assert result_validation.is_description(DESCRIPTION)
