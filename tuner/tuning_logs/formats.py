"""Formats of logs, and their recognition."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import IO, Protocol

from records.logs.exports import ExportedRecord
from tuner.engines.environments import ENGINES, RELAX, RELAY, environment_of
from tuner.engines.log_base import WorkloadText
from tuner.settings import Settings
from tuner.tuning_logs import ansor, metaschedule
from tuner.tuning_logs.files import read_lines

TUNER = "tuner"
_HEAD_LINES = 100

Write = Callable[[str], object]


class Writer(Protocol):
    """Writes the lines of one format, task by task."""

    def write_task(self, workload: WorkloadText, target: str) -> None:
        """Begin a task; ``target`` is JSON in the form that the engine writes."""

    def write_record(self, record: ExportedRecord, trace: str) -> None:
        """Write a record of the task; ``trace`` is JSON in the form that the engine writes."""


class MetaScheduleWriter:
    """A writer of the two files of a MetaSchedule database; a workload is written once."""

    def __init__(self, workloads: Write, records: Write) -> None:
        self._write_workload = workloads
        self._write = records
        self._numbers: dict[bytes, int] = {}
        self._task = (0, "", "")

    def write_task(self, workload: WorkloadText, target: str) -> None:
        """Begin a task, and write its workload if it is new."""
        name = hashlib.sha256(workload.text.encode()).digest()
        if name not in self._numbers:
            self._numbers[name] = len(self._numbers)
            self._write_workload(f"{workload.text}\n")
        self._task = self._numbers[name], target, workload.arguments

    def write_record(self, record: ExportedRecord, trace: str) -> None:
        """Write a record with the number of its workload."""
        number, target, arguments = self._task
        line = metaschedule.dump_record(number, trace, record.run_secs, target, arguments)
        self._write(line)


class AnsorWriter:
    """A writer of Ansor's logs."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._task = ""

    def write_task(self, workload: WorkloadText, target: str) -> None:
        """Begin a task, which is repeated on each line of its records."""
        self._task = json.dumps(
            [workload.text, *json.loads(target), *json.loads(workload.arguments)]
        )

    def write_record(self, record: ExportedRecord, trace: str) -> None:
        """Write a record with its task."""
        self._write(ansor.dump(self._task, trace, record.run_secs, record.created))


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
