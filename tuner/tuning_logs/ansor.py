"""Ansor's logs (auto_scheduler, v0.6): each line has a measurement and the key of its workload.

A line is ``{"i": [[key, target, hardware, ...], [[], steps]], "r": [samples, error number, seconds
spent, time], "v": "v0.6"}``, as TVM's ``auto_scheduler/measure_record.cc`` writes it.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tuner.engines.base import ErrorKind
from tuner.tuning_logs.base import BadLine, Entry, canonical_json, parse_line, samples_of

NAME = "ansor"
TOOL = "Ansor"
VERSION = "v0.6"
# TVM's MeasureErrorNo: instantiation, host and device code, run, result, time-outs, unknown.
_KINDS: dict[int, ErrorKind] = {
    1: "build_error",
    2: "build_error",
    3: "build_error",
    4: "run_error",
    5: "wrong_result",
    6: "build_timeout",
    7: "run_timeout",
    8: "worker_lost",
}


def parse(text: str) -> Entry:
    """Parse a line.

    Raises:
        BadLine: If it is not a measurement of a known version.
    """
    value = parse_line(text)
    if not is_line(value):
        raise BadLine("it is not a measurement with an input and a result")
    if value.get("v") != VERSION:
        raise BadLine(f"log version {value.get('v')!r} is unknown; only {VERSION!r} is supported")
    if not (isinstance(value["i"], list) and len(value["i"]) == 2):
        raise BadLine("its input is not a task and a schedule")
    task, state, result = value["i"][0], value["i"][1], value["r"]
    is_list = isinstance(task, list) and len(task) >= 3 and isinstance(task[2], list)
    if not is_list or not (isinstance(task[0], str) and isinstance(task[1], str)):
        raise BadLine("its task is not a key, a target and the hardware")
    key, target, hardware = task[0], task[1], task[2]
    secs, number, created = _result(result)
    entry = Entry(
        workload=key,
        target=canonical_json({"target": target, "hardware": hardware}),
        trace=json.dumps(state, separators=(",", ":")),
        run_secs=samples_of(secs),
        created=created,
    )
    if number == 0:
        return entry
    if number not in _KINDS:
        raise BadLine(f"error number {number} is unknown")
    message = f"Ansor's error number {number}"
    return replace(entry, run_secs=None, error_kind=_KINDS[number], error_text=message)


def dump(task: str, trace: str, run_secs: Sequence[float], created: datetime) -> str:
    """Return a line; ``task`` and ``trace`` are JSON in the form that the engine writes."""
    result = json.dumps([list(run_secs), 0, sum(run_secs), int(created.timestamp())])
    return f'{{"i": [{task}, {trace}], "r": {result}, "v": "{VERSION}"}}\n'


def is_line(value: Any) -> bool:
    """Return whether a parsed line is from such a log, of any version."""
    return isinstance(value, dict) and value.keys() >= {"i", "r"}


def _result(result: Any) -> tuple[Any, int, datetime]:
    if not (isinstance(result, list) and len(result) == 4 and type(result[1]) is int):
        raise BadLine("its result is not samples, an error number and two times")
    try:
        return result[0], result[1], datetime.fromtimestamp(result[3], UTC)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise BadLine("its time is not a time") from error
