"""Send the files that a call names to another machine, and rename them in its arguments."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.engines.base import RunRequest

# Contents of the files of a folder by their relative paths.
FolderContent = Mapping[str, bytes]


def pack(folder: Path) -> FolderContent:
    """Read every file of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def unpack(content: FolderContent | bytes, path: Path) -> None:
    """Write a folder, or a single file.

    Raises:
        ValueError: If a file would lie outside of the folder.
    """
    if isinstance(content, bytes):
        path.write_bytes(content)
        return
    path.mkdir()
    for name, data in content.items():
        file = path / name
        if not file.is_relative_to(path) or ".." in file.relative_to(path).parts:
            raise ValueError(f"the file {name!r} is outside of the folder")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def requests_in(value: object) -> Iterator[RunRequest]:
    """Yield every run request in the arguments of a call."""
    if isinstance(value, RunRequest):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from requests_in(item)


def texts_in(args: Sequence[Any]) -> Iterator[str]:
    """Yield every text in the arguments of a call that may name an artifact."""
    yield from (value for value in args if isinstance(value, str))
    yield from (request.artifact for request in requests_in(args))


def rename(value: Any, paths: Mapping[str, str]) -> Any:
    """Replace names by paths in the arguments of a call, wherever they occur."""
    if isinstance(value, str):
        return paths.get(value, value)
    if isinstance(value, RunRequest):
        references = tuple(paths.get(name, name) for name in value.references)
        artifact = paths.get(value.artifact, value.artifact)
        return replace(value, artifact=artifact, references=references)
    if isinstance(value, (list, tuple)):
        return type(value)(rename(item, paths) for item in value)
    return value
