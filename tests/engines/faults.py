"""Faults that a control file asks of an engine's workers while they run.

The coordinator's environment names the file in ``FAULTY_CONTROL``; it is read at every call, so
that a test changes the faults of workers that run. It holds, by function (``build``, ``run``,
``propose``, ...), the faults of which the first that is due strikes::

    {"run": [{"fault": "hang", "only": [3735928559]}, {"fault": "kill", "one_in": 5}]}

Which calls are hit is a pure function of their subjects, such as traces: those whose checksum is
in ``only``, or divides by ``one_in``; without either, all. With ``once`` only the first attempt
is hit. Of a list of faults the subject says which one strikes.
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

import psutil

CONTROL = "FAULTY_CONTROL"


class InjectedError(Exception):
    """The exception that an injected fault raises."""


@dataclass(frozen=True)
class Control:
    """The file that tells workers what to do wrong."""

    path: Path

    def inject(self, **faults: Sequence[dict[str, Any]]) -> None:
        """Replace all faults, by function; takes effect at the next call."""
        for marker in self.path.parent.glob("*.hit"):
            marker.unlink()
        # Renamed, so that no worker reads half of it.
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(faults))
        partial.rename(self.path)


def due(function: str, subject: str) -> str:
    """Return the fault that is due to a call, or an empty text."""
    control = Path(os.environ[CONTROL])
    faults = json.loads(control.read_text()).get(function, []) if control.is_file() else []
    number = checksum(subject)
    for each in faults:
        if number % each.get("one_in", 1) or number not in each.get("only", [number]):
            continue
        if each.get("once"):
            marker = control.with_name(f"{function}-{number}.hit")
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                continue
        names = each["fault"] if isinstance(each["fault"], list) else [each["fault"]]
        return str(names[number // each.get("one_in", 1) % len(names)])
    return ""


def checksum(subject: str) -> int:
    """Return the number by which a call is told from others."""
    return zlib.crc32(subject.encode())


def strike(fault: str) -> None:
    """Do what a fault does to a process; return if it is none of those."""
    if fault == "escape":
        raise InjectedError("injected")
    if fault == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    if fault == "kill_agent":
        agent = psutil.Process().parent()
        if agent is not None and agent.name().startswith("ray::Agent"):
            agent.kill()
        time.sleep(60)
    if fault == "exit":
        os._exit(7)
