"""Fields of a tuning job as keyword arguments, for static type checkers; without pydantic."""

from collections.abc import Mapping, Sequence
from typing import TypedDict


class SpecFields(TypedDict, total=False):
    """Fields of :class:`tuner.jobs.spec.TuneSpec`; what is left out has its default.

    A number alone in place of a mapping by network belongs to the only network.
    """

    trials: int | None
    seconds: float | None
    trials_per_round: int | None
    priority: int | None
    task: Sequence[str]
    tag: Sequence[str]
    objective: str
    importance: Mapping[str, float] | float
    require_ms: Mapping[str, float] | float
    baseline_ms: Mapping[str, float] | float
    patience: int | None
    stop_below_ms: float | None
    allocator: str
    cost_model: str
    seed: int
    number: int
    repeat: int
    min_repeat_ms: int
    cache_flush: bool
    cooldown_ms: int
    run_timeout: float
    build_timeout: float
