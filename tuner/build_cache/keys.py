"""Keys of the cache: the hash of everything the bytes of an entry depend on."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_KIND = re.compile(r"[a-z]{1,32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Key:
    """The identity of an entry.

    Attributes:
        kind: Sort of entry, in lower-case letters.
        parts: JSON of everything the bytes depend on, and nothing else.
        title: Text for people; not part of the digest.
    """

    kind: str
    parts: Mapping[str, Any]
    title: str = ""

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise ValueError(f"a kind is 1 to 32 lower-case letters, got {self.kind!r}")

    @cached_property
    def text(self) -> str:
        """The canonical JSON of kind and parts: equal for equal keys, and for no others."""
        return canonical({"kind": self.kind, "parts": self.parts})

    @cached_property
    def digest(self) -> str:
        """The sha256 of :attr:`text`, hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class PartDifference:
    """One part in which two keys differ; None where a key has no such part."""

    part: str
    ours: Any
    theirs: Any


@dataclass(frozen=True)
class KeyDifference:
    """The difference between a key and the key of an entry."""

    digest: str
    title: str
    parts: tuple[PartDifference, ...]


def canonical(value: Any) -> str:
    """Write JSON in the one form that is hashed.

    Raises:
        ValueError: If the value holds infinities or NaN.
        TypeError: If it is not JSON.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def is_digest(text: str) -> bool:
    """Return whether a text has the form of a digest."""
    return bool(_DIGEST.fullmatch(text))


def is_kind(text: str) -> bool:
    """Return whether a text has the form of a kind."""
    return bool(_KIND.fullmatch(text))


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[PartDifference, ...]:
    """List the parts that differ, sorted by name; parts of nested mappings are ``outer.inner``."""
    flat_ours, flat_theirs = dict(_flat(ours)), dict(_flat(theirs))
    names = sorted(set(flat_ours) | set(flat_theirs))
    return tuple(
        PartDifference(name, flat_ours.get(name), flat_theirs.get(name))
        for name in names
        if canonical(flat_ours.get(name)) != canonical(flat_theirs.get(name))
    )


def _flat(parts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in parts.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
