"""Settings of a service that bound the options of a request."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tuner.errors import RequestError
from tuner.settings.values import parse_age, read_count

_TIMES = ("max_run_timeout", "max_build_timeout")


@dataclass(frozen=True, kw_only=True)
class RequestCaps:
    """The highest values that a service accepts for the options that their names end with.

    Attributes:
        max_run_timeout: Longest time limit of running a candidate, seconds.
        max_build_timeout: Longest time limit of building a candidate, seconds.
        max_cooldown_ms: Longest pause between samples, milliseconds.
        max_min_repeat_ms: Longest minimum time spent on the samples of a candidate, milliseconds.
        max_repeat: Largest number of samples per candidate.
        max_trials_per_round: Largest number of trials measured per scheduling decision.
    """

    max_run_timeout: float = 120.0
    max_build_timeout: float = 300.0
    max_cooldown_ms: int = 1000
    max_min_repeat_ms: int = 1000
    max_repeat: int = 100
    max_trials_per_round: int = 256


DEFAULTS = RequestCaps()
#: Defaults of the options, which a request need not name; that of rounds is lowered to its cap.
MINIMA = RequestCaps(
    max_run_timeout=20.0,
    max_build_timeout=60.0,
    max_cooldown_ms=0,
    max_min_repeat_ms=10,
    max_repeat=3,
    max_trials_per_round=1,
)
KEYS = tuple(field.name for field in fields(RequestCaps))


def parse(values: Mapping[str, Any]) -> RequestCaps:
    """Read the settings among others; a missing or empty one has its default.

    Raises:
        RequestError: If one is malformed, or below the default of its option.
    """
    given = {name: values[name] for name in KEYS if str(values.get(name, "")).strip()}
    return RequestCaps(**{name: _parse(name, value) for name, value in given.items()})


def check_caps(options: Mapping[str, Any], caps: RequestCaps) -> None:
    """Refuse options above the caps of a service; one that is None has a default below its cap.

    Raises:
        RequestError: If one is above; it names the limit and the setting.
    """
    for name in KEYS:
        option, limit = name.removeprefix("max_"), getattr(caps, name)
        value = options.get(option)
        if value is not None and value > limit:
            raise RequestError(
                f"must be at most {limit:g} on this service, got {value:g}; its operator sets the "
                f"limit with {name}",
                field=option,
            )


def _parse(name: str, value: Any) -> Any:
    number = parse_age(name, str(value)) if name in _TIMES else read_count(name, value, 1)
    minimum = getattr(MINIMA, name)
    if number < minimum:
        unit = "s" if name in _TIMES else ""
        raise RequestError(
            f"{name} must be at least {minimum:g}{unit}, the default of "
            f"{name.removeprefix('max_')}, got {value!r}"
        )
    return number
