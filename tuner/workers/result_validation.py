"""Validate worker results; anything malformed becomes a failed ``RunResult``."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from tuner.engines.base import BuildResult, ErrorKind, RunResult, TargetInfo

# A worker may return a result of any size; more than this is of no use.
_MAX_SAMPLES = 100_000
_MAX_TEXT_CHARS = 8_000
_MAX_NUMBER = sys.float_info.max
_ERROR_KINDS = get_args(ErrorKind)


def validate_build(result: Any) -> str | RunResult:
    """Return the artifact of a build, or its failure."""
    if not isinstance(result, BuildResult):
        return malformed("build_error", result)
    if result.error_text:
        return _failure("build_error", str(result.error_text))
    if not isinstance(result.artifact, str) or not result.artifact:
        return malformed("build_error", result)
    return result.artifact


def validate_run(result: Any) -> RunResult:
    """Return the result of a run; one that is malformed, or has impossible samples, failed."""
    if not isinstance(result, RunResult) or not _is_storable(result):
        return malformed("run_error", result)
    samples, kind = result.run_secs, result.error_kind
    if kind in _ERROR_KINDS and samples is None:
        return replace(result, error_text=_shorten(result.error_text))
    if kind is None and samples and all(map(_is_duration, samples)):
        return result
    return _failure("run_error", f"samples are not durations: {samples}")


def is_valid_description(answer: Any) -> bool:
    """Return whether a device described a target in a form that can be compared and stored."""
    if not (isinstance(answer, TargetInfo) and isinstance(answer.device, Mapping)):
        return False
    return _is_json(dict(answer.device), allow_nan=False) and isinstance(answer.problem, str)


def malformed(kind: ErrorKind, answer: Any) -> RunResult:
    """Return the failure of a candidate whose worker answered in an unknown form."""
    return _failure(kind, f"the worker returned {answer!r:.200}")


def failed(kind: ErrorKind, error: Exception) -> RunResult:
    """Return the failure of a candidate whose call raised an error."""
    return _failure(kind, str(error))


def _failure(kind: ErrorKind, text: str) -> RunResult:
    return RunResult(error_kind=kind, error_text=_shorten(text))


def _is_storable(result: RunResult) -> bool:
    """Return whether all that comes with the samples fits into the database."""
    return (
        (result.conditions is None or _is_json(result.conditions))
        and isinstance(result.error_text, str)
        and (result.max_error is None or _is_number(result.max_error))
        and (result.clock_secs is None or _is_duration(result.clock_secs))
        and (result.conditions is None or isinstance(result.conditions, Mapping))
        and (result.run_secs is None or isinstance(result.run_secs, Sequence))
        and len(result.run_secs or ()) <= _MAX_SAMPLES
    )


def _is_json(value: Any, *, allow_nan: bool = True) -> bool:
    try:
        json.dumps(value, allow_nan=allow_nan)
    except (TypeError, ValueError):
        return False
    return True


def _is_number(value: Any) -> bool:
    """Return whether databases can store a number; infinity and NaN count."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= _MAX_NUMBER)


def _is_duration(secs: Any) -> bool:
    return isinstance(secs, int | float) and 0 < secs <= _MAX_NUMBER


def _shorten(text: str) -> str:
    """Keep the end of a long text, where the reason is."""
    return text if len(text) <= _MAX_TEXT_CHARS else f"...{text[-_MAX_TEXT_CHARS:]}"
