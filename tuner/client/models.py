"""Options that a client sends, and reading of answers into the shapes of tuner.schemas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypedDict, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from tuner.client.errors import ServerError

Shape = TypeVar("Shape")
Item = TypeVar("Item")


class TuneFields(TypedDict, total=False):
    """Options of a job; what is left out is left to the service.

    Mappings are by the name of a network; ``""`` is the only one.
    """

    target: str
    inputs: Mapping[str, Sequence[int]]
    trials: int | None
    seconds: float | None
    trials_per_round: int | None
    objective: str
    importance: Mapping[str, float]
    require_ms: Mapping[str, float]
    baseline_ms: Mapping[str, float]
    patience: int | None
    allocator: str
    priority: int | None
    stop_below_ms: float | None
    cost_model: str
    seed: int
    random_weights: int | None
    name: str
    number: int
    repeat: int
    min_repeat_ms: int
    cache_flush: bool
    cooldown_ms: int
    run_timeout: float
    build_timeout: float


@dataclass(frozen=True)
class Health:
    """Condition of a service.

    Attributes:
        ready: True if the service can serve requests, which takes its database.
        detail: Status as the service reports it, or the reason that it is not ready.
        version: Version of the service; None if it is not reported.
        skew_secs: Clock of the service minus the local clock, accurate to a second; None if
            the service sends no date.
    """

    ready: bool
    detail: str
    version: str | None
    skew_secs: float | None


@dataclass(frozen=True)
class Page(Generic[Item]):
    """Items of a list; ``next`` continues it, and is None on the last page."""

    items: list[Item]
    next: str | int | None = None


def read_answer(kind: type[Shape], content: bytes | str) -> Shape:
    """Read a shape out of JSON; unknown fields are ignored, missing ones get their defaults.

    Raises:
        ServerError: If a required field is missing, or a field has another type.
    """
    try:
        shape: Shape = _adapter(cast("Any", kind)).validate_json(content, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in (_name(kind), *problem["loc"]))
        raise ServerError(
            f"cannot read the answer of the service: {field}: {problem['msg']}; "
            "check that the URL is that of a tuner service"
        ) from error
    return shape


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))
