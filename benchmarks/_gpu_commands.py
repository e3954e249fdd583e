"""Commands with a time limit: those of the tuner, and those that query the GPU."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tuner.workers.python_command import run_module

# Time to suspend a job after Ctrl-C, within the limit.
_ENDING_SECS = 4.0
_ASK_SECS = 20.0
_FIELDS = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "temperature.gpu",
    "power.draw",
    "power.limit",
    "memory.used",
    "memory.total",
)
# Messages of a driver about a lost GPU or a broken context.
_STICKY = (
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
    "fallen off the bus",
    "uncorrectable ECC",
    "CUDA_ERROR_LAUNCH",
    "CUDA_ERROR_ILLEGAL",
    "CUDA_ERROR_ECC",
    "DeviceLost",
)


class StepError(Exception):
    """Failure of a step, with the reason as its message."""


def run_tuner(words: Sequence[str], secs: float, log: Path) -> dict[str, Any]:
    """Run a command of the tuner that prints JSON; at its limit interrupt it as by Ctrl-C.

    Args:
        words: The command, without ``tuner`` and ``--json``.
        secs: Limit of the command, including its interruption.
        log: File for its stderr.

    Returns:
        Its output; ``{}`` if it was interrupted before it printed anything.

    Raises:
        StepError: If it failed and printed nothing.
    """
    command = run_module("tuner", *words, "--json")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a+") as stream:
        begin = stream.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stream, text=True, start_new_session=True
        )
        text, was_stopped = _wait(process, secs)
        stream.seek(begin)
        lines = [line.strip() for line in stream.read().splitlines() if line.strip()]
    with suppress(json.JSONDecodeError):
        printed: dict[str, Any] = json.loads(text)
        return printed
    if was_stopped:
        return {}
    reason = lines[-1] if lines else f"it ended with exit status {process.returncode}"
    raise StepError(f"tuner {words[0]}: {reason}")


def _wait(process: "subprocess.Popen[str]", secs: float) -> tuple[str, bool]:
    """Return the output of a command, and True if it was interrupted."""
    try:
        return process.communicate(timeout=max(secs - _ENDING_SECS, 1.0))[0], False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    except BaseException:
        _kill(process)
        raise
    try:
        return process.communicate(timeout=_ENDING_SECS)[0], True
    except subprocess.TimeoutExpired:
        _kill(process)
        return process.communicate()[0], True


def _kill(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def read_busy(log: Path) -> dict[str, float]:
    """Return the busy share of each device from the last tuning command in a log."""
    lines = re.findall(r"^busy: (.*)$", log.read_text(), re.MULTILINE) if log.is_file() else []
    pairs = re.findall(r"(\S+) ([\d.]+)%", lines[-1]) if lines else []
    return {name: float(percent) / 100 for name, percent in pairs}


def ask_gpu() -> dict[str, str]:
    """Return the report of ``nvidia-smi`` on the first GPU; empty without a GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    output = _ask([program, "-i", "0", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"])
    values = [value.strip() for value in output.splitlines()[0].split(",")] if output else []
    fields = dict(zip(_FIELDS, values, strict=False))
    # Name from driver 535 on; earlier drivers call them throttle reasons.
    why = "clocks_event_reasons.active"
    active = _ask([program, "-i", "0", f"--query-gpu={why}", "--format=csv,noheader"])
    return {**fields, why: active.strip()} if active else fields


def _ask(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_ASK_SECS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def is_sticky(reason: str) -> bool:
    """Return True if a process cannot use the GPU any more after this error."""
    return any(word.lower() in reason.lower() for word in _STICKY)


def probe() -> str:
    """Return the reason why a new process cannot use the GPU; empty if it can."""
    try:
        done = subprocess.run(
            run_module("benchmarks._gpu_probe"),
            capture_output=True,
            text=True,
            check=False,
            timeout=_ASK_SECS,
        )
    except subprocess.TimeoutExpired:
        return f"a new process waited for it longer than {_ASK_SECS:.0f} s"
    if done.returncode == 0:
        return ""
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1] if lines else f"a probe ended with exit status {done.returncode}"
