"""Files on their way between machines: what a call names is sent along, and renamed over there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.engines.base import RunRequest

# The files of a folder by their relative path.
Parcel = Mapping[str, bytes]


def pack(folder: Path) -> Parcel:
    """Read every file of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def unpack(content: Parcel | bytes, place: Path) -> None:
    """Write a folder, or a single file."""
    if isinstance(content, bytes):
        place.write_bytes(content)
        return
    place.mkdir()
    for name, data in content.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def requests_in(value: object) -> Iterator[RunRequest]:
    """Yield every request in the arguments of a call."""
    if isinstance(value, RunRequest):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from requests_in(each)


def texts_in(args: Sequence[Any]) -> Iterator[str]:
    """Yield every text in the arguments of a call that may name an artifact."""
    yield from (value for value in args if isinstance(value, str))
    yield from (request.artifact for request in requests_in(args))


def rename(value: Any, places: Mapping[str, str]) -> Any:
    """Name what the arguments of a call name as it is called elsewhere."""
    if isinstance(value, str):
        return places.get(value, value)
    if isinstance(value, RunRequest):
        artifact, reference = (places.get(x, x) for x in (value.artifact, value.reference))
        return replace(value, artifact=artifact, reference=reference)
    if isinstance(value, (list, tuple)):
        return type(value)(rename(each, places) for each in value)
    return value
