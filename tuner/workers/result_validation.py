"""What workers answer: a result, or the error that an answer is which can be anything else."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from tuner.engines.base import BuildResult, ErrorKind, RunResult, TargetInfo

# What a worker says may be of any size; what is more than that is no use to anybody.
_MOST_SAMPLES = 100_000
_MOST_TEXT = 8_000
_LARGEST = sys.float_info.max
_KINDS = get_args(ErrorKind)


def artifact_of(result: Any) -> str | RunResult:
    """Return the artifact of a build, or its error; a worker may return anything."""
    if not isinstance(result, BuildResult):
        return garbage("build_error", result)
    if result.error_text:
        return failure("build_error", str(result.error_text))
    if not isinstance(result.artifact, str) or not result.artifact:
        return garbage("build_error", result)
    return result.artifact


def checked(result: Any) -> RunResult:
    """Turn what is no result, or samples that are no durations, into the error they are."""
    if not isinstance(result, RunResult):
        return garbage("run_error", result)
    samples, kind = result.run_secs, result.error_kind
    if not _is_sound(result):
        return garbage("run_error", result)
    if kind in _KINDS and samples is None:
        return replace(result, error_text=_shortened(result.error_text))
    if kind is None and samples and all(map(_is_duration, samples)):
        return result
    return failure("run_error", f"samples are no durations: {samples}")


def _is_sound(result: RunResult) -> bool:
    """Whether what comes with the samples can be stored."""
    return (
        (result.conditions is None or _is_json(result.conditions))
        and isinstance(result.error_text, str)
        and (result.max_error is None or _is_number(result.max_error))
        and isinstance(result.conditions, Mapping | None)
        and isinstance(result.run_secs, Sequence | None)
        and len(result.run_secs or ()) <= _MOST_SAMPLES
    )


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def is_description(answer: Any) -> bool:
    """Whether a device said of itself what can be compared and stored; it may say anything."""
    if not (isinstance(answer, TargetInfo) and isinstance(answer.device, Mapping)):
        return False
    try:
        json.dumps(dict(answer.device), allow_nan=False)
    except (TypeError, ValueError):
        return False
    return isinstance(answer.problem, str)


def _is_number(value: Any) -> bool:
    """Whether something is a number that databases have room for; infinity and NaN are."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= _LARGEST)


def _is_duration(secs: Any) -> bool:
    return _is_number(secs) and 0 < secs < math.inf


def garbage(kind: ErrorKind, answer: Any) -> RunResult:
    """Return what is no answer as the error of a candidate."""
    return failure(kind, f"the worker returned {answer!r:.200}")


def failed(kind: ErrorKind, error: Exception) -> RunResult:
    """Return what was raised as the error of a candidate."""
    return failure(kind, str(error))


def failure(kind: ErrorKind, text: str) -> RunResult:
    """Return an error as the result of a candidate."""
    return RunResult(error_kind=kind, error_text=_shortened(text))


def _shortened(text: str) -> str:
    """Keep the end of a text that nobody can read: the reason is there."""
    return text if len(text) <= _MOST_TEXT else f"...{text[-_MOST_TEXT:]}"
