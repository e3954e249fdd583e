"""Writers of logs in the formats of other tools."""

import hashlib
import json
from collections.abc import Callable
from typing import Protocol

from records.logs.exports import ExportedRecord
from tuner.engines.log_base import WorkloadText
from tuner.tuning_logs import ansor, metaschedule

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
