"""Checks of lines in all formats."""

import json
from typing import Any

from tuner.tuning_logs.base import BadLine

# TVM's tools write 1e10, about 300 years, for a failed trial.
_MAX_SECS = 1e10


def load(text: str) -> Any:
    """Parse a line.

    Raises:
        BadLine: If it is not JSON.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise BadLine("it is nested too deeply") from error
    except ValueError as error:
        raise BadLine("it is not JSON") from error


def samples(values: Any) -> tuple[float, ...]:
    """Return samples, seconds.

    Raises:
        BadLine: If the list is empty, or a value is not a duration.
    """
    if not isinstance(values, list) or not values:
        raise BadLine("it has no samples")
    for value in values:
        if type(value) not in (int, float) or not 0 <= value <= _MAX_SECS:
            raise BadLine("a sample is not a duration")
    return tuple(float(value) for value in values)


def pack(value: Any) -> str:
    """Return canonical JSON, equal for equal values."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
