"""Recordings: curves as compressed JSON lines, a header and one line per task."""

import gzip
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.orm import Session

from records.tasks import WeightedTask
from records.tuning import rounds
from scheduler.replay import RecordedTask, Recording
from tuner.errors import RequestError
from tuner.tuning.tasks.task_profiles import similarity_group, task_profiles

_VERSION = 1
_TASK = TypeAdapter(RecordedTask)
# Exceptions that a damaged file or a file of another kind can cause.
_DAMAGE = (
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
)


def record(session: Session, network: str, tasks: Sequence[WeightedTask]) -> Recording:
    """Read the curves of a network's tasks, with the rounds of all jobs, from the database.

    A round of unknown duration gets the average duration of its task.

    Raises:
        RequestError: If the network is not split into tasks yet.
    """
    if not tasks:
        raise RequestError(f"{network} is not split into tasks yet; wait until its table has tasks")
    histories = rounds.history(session, [task.task_id for task in tasks])
    recorded = []
    latencies = [
        min((r.best_secs for r in histories[task.task_id]), default=math.inf) for task in tasks
    ]
    roofs = task_profiles(tasks).credible_roofs(latencies).tolist()
    for task, roof in zip(tasks, roofs, strict=True):
        history = [r for r in histories[task.task_id] if r.n_trials]
        durations = [r.secs for r in history if r.secs is not None]
        average_secs = sum(durations) / len(durations) if durations else 0.0
        recorded.append(
            RecordedTask(
                name=task.name,
                weight=task.weight,
                flop=task.flop,
                group=similarity_group(task),
                n_trials=tuple(r.n_trials for r in history),
                best_secs=tuple(r.best_secs for r in history),
                secs=tuple(average_secs if r.secs is None else r.secs for r in history),
                roof_secs=roof,
            )
        )
    return Recording(network, tuple(recorded))


def write(recording: Recording, path: Path) -> None:
    """Write a recording; a path ending in ``.gz`` is compressed, reproducibly.

    Raises:
        OSError: If the file cannot be written.
    """
    header = {"version": _VERSION, "network": recording.network, "origin": recording.origin}
    lines = [json.dumps(header)]
    for task in recording.tasks:
        rounded = {
            "best_secs": [None if secs == math.inf else secs for secs in task.best_secs],
            "secs": [round(secs, 4) for secs in task.secs],
        }
        lines.append(json.dumps(asdict(task) | rounded, separators=(",", ":")))
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read(path: Path) -> Recording:
    """Read a recording.

    Raises:
        RequestError: If the file is missing, damaged, or of another version.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        header, *lines = [json.loads(line) for line in text.splitlines()]
        if header["version"] != _VERSION:
            raise RequestError(
                f"{path} is a recording of version {header['version']}, not {_VERSION}"
            )
        tasks = tuple(_task(line) for line in lines)
        return Recording(header["network"], tasks, header["origin"])
    except _DAMAGE as error:
        raise RequestError(f"{path} is not a recording, or is damaged: {error}") from error
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}") from error


def _task(line: dict[str, Any]) -> RecordedTask:
    latencies = [math.inf if secs is None else secs for secs in line["best_secs"]]
    try:
        return _TASK.validate_python(line | {"best_secs": latencies})
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(": ".join((*map(str, first["loc"]), message))) from error
