"""Faults that a control file injects into an engine's workers while they run.

The coordinator's environment names the file in ``FAULTY_CONTROL``. Workers read it at every call,
so that a test can change the faults of running workers. It maps functions (``build``, ``run``,
``propose``, ...) to faults, of which the first that is due strikes::

    {"run": [{"fault": "hang", "only": [3735928559]}, {"fault": "kill", "one_in": 5}]}

The calls that are hit are a pure function of their subjects, such as traces: those whose checksum
is in ``only`` or divisible by ``one_in``, and whose text contains ``containing``; without any of
them, all. With ``once``, only the first attempt is hit. Of a list of faults, the subject
determines the one that strikes. Every strike is logged, see :meth:`Control.strikes`.
"""

import ctypes
import json
import os
import signal
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTROL = "FAULTY_CONTROL"


class InjectedError(Exception):
    """The exception that an injected fault raises."""


@dataclass(frozen=True)
class Control:
    """Control file, and the log of the faults that struck."""

    path: Path

    def inject(self, **faults: Sequence[dict[str, Any]]) -> None:
        """Replace all faults, by function; takes effect at the next call."""
        for marker in self.path.parent.glob("*.hit"):
            marker.unlink()
        _log_of(self.path).unlink(missing_ok=True)
        # Renamed, so that no worker reads half of it.
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(faults))
        partial.rename(self.path)

    def strikes(self, function: str) -> int:
        """Return the number of faults that struck a function since the last injection."""
        log = _log_of(self.path)
        return log.read_text().split().count(function) if log.is_file() else 0


def due(function: str, subject: str) -> str:
    """Return the fault that strikes a call and log it; empty if there is none."""
    control = Path(os.environ[CONTROL])
    faults = json.loads(control.read_text()).get(function, []) if control.is_file() else []
    number = checksum(subject)
    for fault in faults:
        if number % fault.get("one_in", 1) or number not in fault.get("only", [number]):
            continue
        if fault.get("containing", "") not in subject:
            continue
        if fault.get("once"):
            marker = control.with_name(f"{function}-{number}.hit")
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                continue
        with _log_of(control).open("a") as log:
            log.write(f"{function}\n")
        names = fault["fault"] if isinstance(fault["fault"], list) else [fault["fault"]]
        return str(names[number // fault.get("one_in", 1) % len(names)])
    return ""


def _log_of(control: Path) -> Path:
    return control.with_name("strikes.log")


def checksum(subject: str) -> int:
    """Return the number that identifies the subject of a call."""
    return zlib.crc32(subject.encode())


def strike(fault: str) -> None:
    """Do to this process what a fault says; return if the fault is of another kind."""
    if fault == "escape":
        raise InjectedError("injected")
    if fault == "memory":
        raise MemoryError
    if fault == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    if fault == "exit":
        os._exit(7)
