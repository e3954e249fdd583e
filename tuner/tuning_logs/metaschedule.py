"""MetaSchedule's JSON databases: a file of workloads, and a file of records that refer to them.

A workload is ``[hash, IR in base64]``, a record ``[number of the workload from 0, [trace, samples,
target, arguments]]``, one per line.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.tuning_logs.base import BadLine, Entry, canonical_json, parse_line, samples_of

NAME = "metaschedule"
TOOL = "MetaSchedule"
WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"
# A failed trial has a sample of 1e10.
_FAILED_SECS = 1e9


def files_of(location: str) -> tuple[Path, Path]:
    """Return the files of workloads and records, given their folder or one of them.

    Raises:
        RequestError: If one of them does not exist.
    """
    path = Path(location)
    folder, name = (path, RECORDS) if path.is_dir() else (path.parent, path.name)
    pair = (
        folder / name.replace("tuning_record", "workload"),
        folder / name.replace("workload", "tuning_record"),
    )
    for file in pair:
        if pair[0] == pair[1] or not file.is_file():
            raise RequestError(
                f"a MetaSchedule database has two files, {WORKLOADS} and {RECORDS}; "
                f"{file} is not one of a pair"
            )
    return pair


def parse_workload(text: str) -> str:
    """Return the IR, base64, in a line of the file of workloads.

    Raises:
        BadLine: If the line is not a workload.
    """
    value = parse_line(text)
    if not _is_workload(value):
        raise BadLine("its workload is not a pair of hash and IR")
    return str(value[1])


def parse_record(text: str) -> Entry:
    """Parse a line of the file of records.

    Raises:
        BadLine: If the line is not a record, or the record was never measured.
    """
    value = parse_line(text)
    if not _is_record(value):
        raise BadLine("it is not a record of a workload")
    number, (trace, run_secs, target, *_) = value
    if target is None:
        raise BadLine("it names no target")
    if run_secs is None:
        raise BadLine("it was never measured")
    secs = samples_of(run_secs)
    entry = Entry(str(number), canonical_json(target), json.dumps(trace), secs)
    if max(secs) >= _FAILED_SECS:
        message = "MetaSchedule keeps no reason"
        return replace(entry, run_secs=None, error_kind="run_error", error_text=message)
    return entry


def dump_record(number: int, trace: str, run_secs: list[float], target: str, args: str) -> str:
    """Return a line of the file of records; ``trace``, ``target`` and ``args`` are JSON."""
    return f"[{number},[{trace},{json.dumps(run_secs)},{target},{args}]]\n"


def is_line(value: Any) -> bool:
    """Return whether a parsed line is from either file."""
    return _is_workload(value) or _is_record(value)


def _is_workload(value: Any) -> bool:
    return isinstance(value, list) and [type(item) for item in value] == [str, str]


def _is_record(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and type(value[0]) is int
        and value[0] >= 0
        and isinstance(value[1], list)
        and len(value[1]) >= 3
    )
