"""From JSON to frozen dataclasses, by their annotations alone.

Fields that a newer service adds are passed over; those that an older one lacks are None, or
their defaults, where the dataclass allows that.
"""

import types
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from tuner.client.errors import ServerError

Kind = TypeVar("Kind")


def parse(kind: type[Kind], value: Any) -> Kind:
    """Read a dataclass out of decoded JSON.

    Raises:
        Failed: If a field is missing or has another type.
    """
    parsed: Kind = _parse(kind, value, kind.__name__)
    return parsed


def _parse(kind: Any, value: Any, where: str) -> Any:
    if kind is Any or (value is None and types.NoneType in get_args(kind)):
        return value
    if is_dataclass(kind):
        return _parse_fields(kind, value, where)
    if get_origin(kind) is not None:
        return _parse_generic(kind, value, where)
    if kind is datetime:
        return _parse_time(value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _expect(kind, value, where)


def _parse_generic(kind: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin is list:
        return [_parse(args[0], item, where) for item in _expect(list, value, where)]
    if origin is dict:
        pairs = _expect(dict, value, where).items()
        return {key: _parse(args[1], item, where) for key, item in pairs}
    (inner,) = [arg for arg in args if arg is not types.NoneType]
    return _parse(inner, value, where)


def _parse_fields(kind: Any, value: Any, where: str) -> Any:
    given = _expect(dict, value, where)
    hints = _hints(kind)
    parsed = {}
    for field in fields(kind):
        place = f"{where}.{field.name}"
        if field.name in given:
            parsed[field.name] = _parse(hints[field.name], given[field.name], place)
        elif field.default is MISSING and field.default_factory is MISSING:
            if types.NoneType not in get_args(hints[field.name]):
                raise ServerError(
                    f"the service's answer lacks {place}; is it a service of the tuner?"
                )
            parsed[field.name] = None
    return kind(**parsed)


def _parse_time(value: Any, where: str) -> datetime:
    try:
        return datetime.fromisoformat(_expect(str, value, where))
    except ValueError as error:
        raise ServerError(f"the service's answer has no time in {where}: {value!r}") from error


def _expect(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ServerError(
            f"the service's answer has no {kind.__name__} in {where}: {str(value)[:80]!r}"
        )
    return value


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)
