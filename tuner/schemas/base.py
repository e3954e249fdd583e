"""The base of every shape, and pages of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

Item = TypeVar("Item")


class Schema:
    """Base of every shape.

    A reader ignores fields that it does not know and fills missing ones with their defaults, so
    that client and service may differ in version. The OpenAPI document lists all as required,
    because a service sends all of them.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "json_schema_serialization_defaults_required": True
    }


@dataclass(frozen=True)
class Page(Schema, Generic[Item]):
    """Items of a list; ``next`` continues it, and is None on the last page."""

    items: list[Item]
    next: str | int | None = None
