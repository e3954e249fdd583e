"""Comparison of latencies by the settings of the evaluator that change what a latency means."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tuner.engines.base import EvaluatorSettings
from tuner.errors import RequestError

_NAMES = ("cache_flush", "number")


class Incomparable(RequestError):  # noqa: N818  it names a relation
    """Settings with which the trials of a target were not timed.

    Attributes:
        timed_with: Compared settings of those trials.
    """

    def __init__(self, timed_with: Mapping[str, Any], refused: Mapping[str, Any]) -> None:
        name = next(name for name in _NAMES if timed_with[name] != refused[name])
        super().__init__(
            f"must be {timed_with[name]}, with which the records of this target were timed; to "
            f"time with {refused[name]}, use another database",
            field=name,
        )
        self.timed_with = dict(timed_with)


def compared_settings(evaluator: EvaluatorSettings | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an evaluator that are compared; a missing one has its default."""
    defaults = asdict(EvaluatorSettings())
    given = asdict(evaluator) if isinstance(evaluator, EvaluatorSettings) else evaluator
    return {name: given.get(name, defaults[name]) for name in _NAMES}


def check_default(evaluator: EvaluatorSettings) -> None:
    """Refuse settings whose latencies do not compare with the defaults.

    Raises:
        RequestError: If a compared setting is not the default.
    """
    given, defaults = compared_settings(evaluator), compared_settings({})
    for name in _NAMES:
        if given[name] != defaults[name]:
            raise RequestError(
                f"must be {defaults[name]} on a service, whose jobs share their records; to time "
                f"with {given[name]}, use tuner tune with a database of its own",
                field=name,
            )
