"""Types of the fields of a spec, and the errors of their validation."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails, PydanticCustomError

from tuner.errors import RequestError

_MAX_NETWORKS, _MAX_NAME_CHARS = 64, 500
_MAX_SHOWN_CHARS = 100
_CONSTRAINTS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def refuse(text: str) -> PydanticCustomError:
    """Return the error of a validator; its text follows the name of the field."""
    # Without a context, braces in the text are not formatted.
    return PydanticCustomError("refused", text)


def _by_network(value: object) -> object:
    """Read texts such as ``NAME=5``; a number alone belongs to the only network."""
    if isinstance(value, (int, float, str)):
        value = [str(value)]
    if not isinstance(value, Sequence):
        return value
    numbers: dict[str, str] = {}
    for text in value:
        name, _, number = str(text).rpartition("=")
        if name in numbers:
            raise refuse(f"is given twice for {repr(name) if name else 'the network'}")
        numbers[name] = number
    return numbers


def _printable(name: str) -> str:
    if not name.isprintable():
        raise refuse(f"must be printable, got {name!r}")
    return name


def known(names: Iterable[str], name: str) -> str:
    """Return a name if it is one of those known, or refuse it."""
    if name not in names:
        raise refuse(f"{name!r} is unknown; choose one of {', '.join(names)}")
    return name


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NetworkName = Annotated[str, Field(max_length=_MAX_NAME_CHARS), AfterValidator(_printable)]
# Forms send texts, once per network.
ByNetwork = Annotated[
    dict[_NetworkName, _Positive],
    Field(max_length=_MAX_NETWORKS),
    BeforeValidator(_by_network),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "maxItems": _MAX_NETWORKS}),
]
# One text alone is a list of one.
Texts = Annotated[
    tuple[
        Annotated[str, Field(min_length=1, max_length=_MAX_NAME_CHARS), AfterValidator(_printable)],
        ...,
    ],
    Field(max_length=_MAX_NETWORKS),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "maxItems": _MAX_NETWORKS}),
]
Millis = Annotated[int, Field(ge=0, le=3_600_000)]
Timeout = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


def as_request_error(error: ValidationError) -> RequestError:
    """Return the first error of a validation as the error of a field."""
    first = error.errors()[0]
    field, *inner = map(str, first["loc"])
    keys = [repr(key) for key in inner if key not in ("", "[key]")]
    return RequestError(" ".join([*keys, _text_of(first)]), field=field)


def _text_of(error: ErrorDetails) -> str:
    """Describe the problem of a value in a phrase that follows the name of its field."""
    kind = error["type"]
    if kind == "refused":
        return error["msg"]
    if kind == "extra_forbidden":
        return "is not an option"
    text = error["msg"].replace("Input should be", "must be")
    if kind in _CONSTRAINTS:
        word, key = _CONSTRAINTS[kind]
        limit = error["ctx"][key]
        text = f"must be {word} {int(limit) if limit == int(limit) else limit}"
    return f"{text}, got {error['input']!r:.{_MAX_SHOWN_CHARS}}"
