"""The formats of logs, and how a log shows which it is of."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from tuner.logs import ansor, metaschedule
from tuner.logs.files import open_log, read_lines

TUNER = "tuner"
AUTO = "auto"
_HEAD_LINES = 100


@dataclass(frozen=True)
class Format:
    """A format of another tool: its name, the tool, and the engine that understands it."""

    name: str
    tool: str
    engine: str


FORMATS = {
    each.name: each
    for each in (
        Format(metaschedule.NAME, metaschedule.TOOL, "tuner.engines.relax.worker"),
        Format(ansor.NAME, ansor.TOOL, "tuner.engines.relay.worker"),
    )
}
NAMES = (TUNER, *FORMATS)


def recognise(file: str, stream: IO[bytes] | None = None) -> str:
    """Return the name of the format of a log, by what is in it.

    Args:
        file: A file, or a folder with a MetaSchedule database.
        stream: The file, if it is open; it is left at its beginning.

    Returns:
        Ours, if it is no other: reading it says what is wrong.

    Raises:
        RequestError: If it cannot be read.
    """
    if stream is None and Path(file).is_dir():
        return metaschedule.NAME if (Path(file) / metaschedule.RECORDS).exists() else TUNER
    if stream is None:
        with open_log(file) as opened:
            return recognise(file, opened)
    found = next((name for name in _names(stream) if name), TUNER)
    stream.seek(0)
    return found


def _names(stream: IO[bytes]) -> Iterator[str]:
    """The format of each of the first lines; empty where it does not show."""
    for line in islice(read_lines(stream), _HEAD_LINES):
        try:
            value = json.loads(line.text)
        except (ValueError, RecursionError):
            continue
        if ansor.is_line(value):
            yield ansor.NAME
        elif metaschedule.is_line(value):
            yield metaschedule.NAME
        elif isinstance(value, dict) and "format" in value:
            yield TUNER
