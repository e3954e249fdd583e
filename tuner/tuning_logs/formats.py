"""Formats of logs, and their recognition."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import IO

from tuner.engines.environments import ENGINES, RELAX, RELAY, environment_of
from tuner.settings import Settings
from tuner.tuning_logs import ansor, metaschedule
from tuner.tuning_logs.files import read_lines

TUNER = "tuner"
_HEAD_LINES = 100


@dataclass(frozen=True)
class Format:
    """A format of another tool: its name, the tool, and the engine that can read it."""

    name: str
    tool: str
    engine: str

    @property
    def module(self) -> str:
        """Module of the engine, under whose name workloads are stored."""
        return ENGINES[self.engine]

    def settings(self, settings: Settings) -> Settings:
        """Return settings for worker processes with the engine."""
        environment = environment_of(self.module)
        return replace(settings, engine=self.module, environment=environment)


FORMATS = {
    form.name: form
    for form in (
        Format(metaschedule.NAME, metaschedule.TOOL, RELAX),
        Format(ansor.NAME, ansor.TOOL, RELAY),
    )
}


def recognise(stream: IO[bytes]) -> str:
    """Return the name of the format of a log by its first lines, and rewind the stream.

    An unknown format counts as the tuner's own, whose parser then reports the error.
    """
    name = next(_names(stream), TUNER)
    stream.seek(0)
    return name


def _names(stream: IO[bytes]) -> Iterator[str]:
    """Yield the formats of those first lines that show one."""
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
