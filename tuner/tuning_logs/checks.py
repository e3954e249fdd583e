"""Checks that the lines of all formats pass."""

import json
from typing import Any

from tuner.tuning_logs.base import BadLine

# What TVM's tools write for a trial that failed, some 300 years: nothing takes longer.
_MOST_SECS = 1e10


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
        BadLine: If there is none, or one is no duration.
    """
    if not isinstance(values, list) or not values:
        raise BadLine("it has no samples")
    for value in values:
        if type(value) not in (int, float) or not 0 <= value <= _MOST_SECS:
            raise BadLine("a sample is no duration")
    return tuple(float(value) for value in values)


def pack(value: Any) -> str:
    """Return JSON that is equal for equal values."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
