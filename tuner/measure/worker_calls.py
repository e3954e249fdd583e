"""Calls of workers whose failures are the result of the candidate they were made for."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tuner.engines.base import ErrorKind, RunResult
from tuner.errors import DeviceLost, WorkerLost, WorkError
from tuner.measure.disk_space import check_free_space, raise_if_full
from tuner.workers import result_validation
from tuner.workers.base import CallTimeout

T = TypeVar("T")


class Step(NamedTuple):
    """Step of a candidate, and the kinds of its errors."""

    name: str
    error: ErrorKind
    timeout: ErrorKind


BUILDING = Step("building", "build_error", "build_timeout")
RUNNING = Step("running", "run_error", "run_timeout")


async def call_with_retry(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call, and make it again if its worker was killed from outside.

    Raises:
        DeviceLost: If the device was lost; the call is not made again.
        WorkerLost: If the call crashed its worker, or two workers were killed.
        CallTimeout, TunerError, OSError: As the call raises them.
    """
    try:
        return await call()
    except DeviceLost:
        raise
    except WorkerLost as error:
        if error.crashed:
            raise
    return await call()


async def result_of(
    step: Step,
    call: Callable[[], Awaitable[Any]],
    validate: Callable[[Any], T | RunResult],
    timeout_secs: float,
    data_dir: Path,
) -> T | RunResult:
    """Make the call of one step of a candidate.

    Args:
        call: Starts the call.
        validate: Turns the answer of the worker, which can be anything, into a result.
        timeout_secs: Time limit of the call, for the error text.
        data_dir: Directory whose disk the workers write to.

    Returns:
        The validated answer, or the error that the call ended with.

    Raises:
        DiskFull: If the call failed because the disk is full.
        DeviceLost: If the device was lost.
    """
    result: T | RunResult
    try:
        result = validate(await call_with_retry(call))
    except CallTimeout:
        text = f"{step.name} took longer than {timeout_secs:g} s"
        result = RunResult(error_kind=step.timeout, error_text=text)
    except DeviceLost:
        raise
    except WorkerLost as error:
        result = result_validation.failed(step.error if error.crashed else "worker_lost", error)
    except (WorkError, OSError) as error:
        raise_if_full(error)
        result = result_validation.failed(step.error, error)
    return check_free_space(result, data_dir) if isinstance(result, RunResult) else result
