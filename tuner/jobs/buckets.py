"""Buckets as users write them: sizes of dynamic dimensions, their weights, and masks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import SupportsIndex

from tuner.errors import RequestError

#: Name that stands for every dynamic dimension that is not named.
AUTO = "auto"
MAX_SIZE = 2**20
_EXAMPLE = "NAME=1,4,16, NAME alone or auto"

#: Sizes with their weights by dimension; no sizes let the tuner choose.
Buckets = Mapping[str, tuple[tuple[int, float], ...]]
#: Sizes as Python takes them: numbers, weights by number, or None to let the tuner choose.
GivenSizes = Sequence[SupportsIndex] | Mapping[int, float] | None


@dataclass(frozen=True)
class Padded:
    """The buckets of a request, and its masks: the value of the padding by input name."""

    buckets: Buckets = field(default_factory=dict)
    masks: Mapping[str, float] = field(default_factory=dict)


NOT_PADDED = Padded()


def parse_padded(buckets: Sequence[str], masks: Sequence[str]) -> Padded:
    """Read buckets such as ``sequence=32,64:3`` and masks such as ``NAME`` or ``NAME=1``.

    Raises:
        RequestError: If one cannot be read, or is given twice.
    """
    read: dict[str, tuple[tuple[int, float], ...]] = {}
    for text in buckets:
        name, sizes = _parse_bucket(text)
        if name in read:
            raise _wrong(f"{name!r} is given twice; give its sizes in one list")
        read[name] = sizes
    return Padded(read, _parse_masks(masks))


def make_padded(
    buckets: Mapping[str, GivenSizes] | str | None, masks: Mapping[str, float] | Iterable[str]
) -> Padded:
    """Return buckets and masks that were given as Python values.

    Raises:
        RequestError: If a size, a weight or a value cannot be used.
    """
    if isinstance(buckets, str):
        buckets = {buckets: None}
    return Padded(
        {name: _given(name, sizes) for name, sizes in (buckets or {}).items()},
        _parse_masks(
            [f"{name}={value}" for name, value in masks.items()]
            if isinstance(masks, Mapping)
            else list(masks)
        ),
    )


def text_of(name: str, sizes: GivenSizes) -> str:
    """Return the text of a bucket, as :func:`parse_padded` reads it."""
    if not sizes:
        return name
    if isinstance(sizes, Mapping):
        texts = [str(n) if weight == 1 else f"{n}:{weight:.15g}" for n, weight in sizes.items()]
    else:
        texts = [str(size) for size in sizes]
    return f"{name}={','.join(texts)}"


def _given(name: str, sizes: GivenSizes) -> tuple[tuple[int, float], ...]:
    if sizes is None:
        return ()
    if not sizes:
        raise _wrong(f"{name!r} has no sizes; give at least one")
    try:
        return _parse_bucket(text_of(name, sizes))[1]
    except (TypeError, ValueError) as error:
        raise _wrong(f"{name!r} has sizes that are not numbers: {sizes!r:.100}") from error


def _parse_bucket(text: str) -> tuple[str, tuple[tuple[int, float], ...]]:
    name, equals, sizes = text.rpartition("=")
    if not equals:
        name = text
    if not name.strip() or not name.isprintable():
        raise _wrong(f"cannot read {text!r}: expected {_EXAMPLE}")
    if not equals:
        return name, ()
    if not sizes.strip():
        raise _wrong(f"{name!r} has no sizes; give at least one, or the name alone for a choice")
    if name == AUTO:
        raise _wrong(f"{AUTO!r} chooses the sizes; leave them out, or name the dimension")
    pairs = [_parse_size(text, each) for each in sizes.split(",")]
    given = [size for size, _ in pairs]
    if len(set(given)) < len(given):
        raise _wrong(f"{text!r} has a size twice; give each once")
    return name, tuple(sorted(pairs))


def _parse_size(text: str, pair: str) -> tuple[int, float]:
    size_text, colon, weight_text = pair.partition(":")
    try:
        size, weight = int(size_text), float(weight_text) if colon else 1.0
    except ValueError as error:
        raise _wrong(f"cannot read {text!r}: expected {_EXAMPLE}") from error
    if not 1 <= size <= MAX_SIZE:
        raise _wrong(f"every size must be from 1 to {MAX_SIZE}, got {text!r}")
    if not (weight > 0 and math.isfinite(weight)):
        raise _wrong(f"every weight must be above 0, got {text!r}")
    return size, weight


def _parse_masks(texts: Sequence[str]) -> dict[str, float]:
    masks: dict[str, float] = {}
    for text in texts:
        name, equals, value_text = text.rpartition("=")
        try:
            value = float(value_text) if equals else 0.0
        except ValueError:
            value = math.nan
        name = name if equals else text
        if not name or not name.isprintable() or not math.isfinite(value):
            raise RequestError(f"cannot read {text!r}: expected NAME or NAME=VALUE", field="mask")
        if name in masks:
            raise RequestError(f"{name!r} is given twice", field="mask")
        masks[name] = value
    return masks


def _wrong(text: str) -> RequestError:
    return RequestError(text, field="bucket")
