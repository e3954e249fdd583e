"""Options of a zoo network: the part of its name after the question mark."""

from dataclasses import dataclass, fields, replace
from typing import Any

from tuner.errors import ModelError

_CHOICES = {"layout": ("NHWC", "NCHW"), "dtype": ("float32", "float16")}
_LIMITS = {"batch": 65536, "image": 4096, "classes": 100_000, "seed": 2**63 - 1}


@dataclass(frozen=True)
class Options:
    """Options of a zoo network.

    Attributes:
        batch: Number of images.
        layout: Layout of the input: NHWC or NCHW (NDHWC or NCDHW for videos; an MLP has only one).
        dtype: Type of the input, the weights and the output: float32 or float16.
        image: Height and width of an image, pixels.
        classes: Length of the output.
        seed: Seed of the random weights.
    """

    batch: int = 1
    layout: str = "NHWC"
    dtype: str = "float32"
    image: int = 224
    classes: int = 1000
    seed: int = 0


def parse_options(name: str, text: str, defaults: Options, min_image: int) -> Options:
    """Parse ``batch=4&layout=NCHW``; ``image_size`` is another name for ``image``.

    Raises:
        ModelError: If an option is unknown, repeated, malformed, or out of its range.
    """
    values: dict[str, Any] = {}
    for item in text.split("&") if text else []:
        key, equals, value = item.partition("=")
        key = "image" if key == "image_size" else key
        if not equals or key not in {entry.name for entry in fields(Options)}:
            names = ", ".join(entry.name for entry in fields(Options))
            raise ModelError(
                f"zoo:{name} has no option {item!r}: write option=value with {names}",
                code="zoo-option",
            )
        if key in values:
            raise ModelError(f"zoo:{name}: option {key!r} is given twice", code="zoo-option")
        values[key] = _parse_value(f"zoo:{name}", key, value, min_image)
    return replace(defaults, **values)


def _parse_value(where: str, key: str, value: str, min_image: int) -> int | str:
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            expected = " or ".join(_CHOICES[key])
            raise ModelError(
                f"{where}: {key}={value!r} is unknown: expected {expected}", code="zoo-option"
            )
        return value
    lower = {"image": min_image, "seed": 0}.get(key, 1)
    # int() would accept "1_0" and digits of other scripts.
    number = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else -1
    if not lower <= number <= _LIMITS[key]:
        raise ModelError(
            f"{where}: {key}={value!r} must be a whole number from {lower} to {_LIMITS[key]}",
            code="zoo-option",
        )
    return number
