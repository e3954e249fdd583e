"""Options that a client sends, and reading of answers into the shapes of tuner.schemas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from tuner.client.errors import ServerError
from tuner.jobs import fields
from tuner.jobs.buckets import GivenSizes

Shape = TypeVar("Shape")


class TuneFields(fields.SpecFields, total=False):
    """Options of a job and of its models; the service has a default for each.

    Attributes:
        target: Target to compile for; ``llvm`` by default.
        inputs: Shapes of inputs with dynamic dimensions, or several sets of them: each is a network
            of the job.
        buckets: Sizes by dynamic dimension, or weights by size; None for a choice of sizes.
        masks: Value of the padding by name of the inputs that mark it.
        random_weights: Seed to replace the weights with; None keeps them.
        name: Name of the job for people.
        webhook: Address that gets a signed request when the job has ended; empty for none.
    """

    target: str
    inputs: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]]
    buckets: Mapping[str, GivenSizes]
    masks: Mapping[str, float]
    random_weights: int | None
    name: str
    webhook: str


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


def read_answer(kind: type[Shape], content: bytes | str) -> Shape:
    """Read a shape out of JSON; unknown fields are ignored, missing ones get their defaults.

    Raises:
        ServerError: If a required field is missing, or a field has another type.
    """
    try:
        shape: Shape = _adapter(cast("Any", kind)).validate_json(content, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(
            str(part) for part in (str(getattr(kind, "__name__", kind)), *problem["loc"])
        )
        raise ServerError(
            f"cannot read the answer of the service: {field}: {problem['msg']}; "
            "check that the URL is that of a tuner service"
        ) from error
    return shape


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
