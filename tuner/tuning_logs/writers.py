"""Lines of logs of other tools, put together out of what an engine says."""

import hashlib
import json
from collections.abc import Callable
from typing import Protocol

from records.exports import ExportedRecord
from tuner.engines.log_base import WorkloadText
from tuner.tuning_logs import ansor, metaschedule

Write = Callable[[str], object]


class Writer(Protocol):
    """Writes the lines of one format, task by task."""

    def write_task(self, workload: WorkloadText, target: str) -> None:
        """Begin a task; ``target`` is JSON as the engine writes it."""

    def write_record(self, record: ExportedRecord, trace: str) -> None:
        """Write a record of the task; ``trace`` is JSON as the engine writes it."""


class MetaScheduleWriter:
    """Writes the two files of a MetaSchedule database; a workload is written once."""

    def __init__(self, workloads: Write, records: Write) -> None:
        self._write_workload = workloads
        self._write = records
        self._numbers: dict[bytes, int] = {}
        self._task = (0, "", "")

    def write_task(self, workload: WorkloadText, target: str) -> None:
        """See the contract."""
        name = hashlib.sha256(workload.text.encode()).digest()
        if name not in self._numbers:
            self._numbers[name] = len(self._numbers)
            self._write_workload(f"{workload.text}\n")
        self._task = self._numbers[name], target, workload.arguments

    def write_record(self, record: ExportedRecord, trace: str) -> None:
        """See the contract."""
        number, target, arguments = self._task
        line = metaschedule.dump_record(number, trace, record.run_secs, target, arguments)
        self._write(line)


class AnsorWriter:
    """Writes a log of Ansor."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._task = ""

    def write_task(self, workload: WorkloadText, target: str) -> None:
        """See the contract."""
        self._task = json.dumps(
            [workload.text, *json.loads(target), *json.loads(workload.arguments)]
        )

    def write_record(self, record: ExportedRecord, trace: str) -> None:
        """See the contract."""
        self._write(ansor.dump(self._task, trace, record.run_secs, record.created))
