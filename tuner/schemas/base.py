"""The base of every shape."""

from collections.abc import Mapping
from typing import Any, ClassVar


class Schema:
    """Base of every shape.

    A reader ignores fields that it does not know and fills missing ones with their defaults, so
    that client and service may differ in version. The OpenAPI document lists all as required,
    because a service sends all of them.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "json_schema_serialization_defaults_required": True
    }
