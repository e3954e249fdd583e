"""Commands with a time limit: the tuner's own, and those that ask the GPU."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# To put a job away after Ctrl-C, within the limit.
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
# What a driver says of a GPU that no process can go on with, or of a context that is broken.
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


class StepFailed(Exception):  # noqa: N818  it is what happened
    """A step cannot go on; the message is the reason."""


def run_tuner(words: Sequence[str], secs: float, log: Path) -> dict[str, Any]:
    """Run a command of the tuner that prints JSON; at its limit it is stopped as by Ctrl-C.

    Args:
        words: The command, without ``tuner`` and ``--json``.
        secs: How long it may take, with being stopped.
        log: File that takes what it says on stderr.

    Returns:
        What it printed; ``{}`` if it was stopped before it printed anything.

    Raises:
        StepFailed: If it failed and printed nothing.
    """
    command = [sys.executable, "-m", "tuner", *words, "--json"]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a+") as stream:
        begin = stream.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stream, text=True, start_new_session=True
        )
        text, was_stopped = _wait(process, secs)
        stream.seek(begin)
        said = [line.strip() for line in stream.read().splitlines() if line.strip()]
    with suppress(json.JSONDecodeError):
        printed: dict[str, Any] = json.loads(text)
        return printed
    if was_stopped:
        return {}
    reason = said[-1] if said else f"it ended with exit status {process.returncode}"
    raise StepFailed(f"tuner {words[0]}: {reason}")


def _wait(process: "subprocess.Popen[str]", secs: float) -> tuple[str, bool]:
    """Return what a command printed, and whether it had to be stopped."""
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
    """Return the busy share of each device as the last tuning command in a log said it."""
    lines = re.findall(r"^busy: (.*)$", log.read_text(), re.MULTILINE) if log.is_file() else []
    pairs = re.findall(r"(\S+) ([\d.]+)%", lines[-1]) if lines else []
    return {name: float(percent) / 100 for name, percent in pairs}


def ask_gpu() -> dict[str, str]:
    """Return what ``nvidia-smi`` says of the first GPU; nothing where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    said = _ask([program, "-i", "0", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"])
    values = [value.strip() for value in said.splitlines()[0].split(",")] if said else []
    found = dict(zip(_FIELDS, values, strict=False))
    # Drivers from 535 on call them so; those before, throttle reasons.
    why = "clocks_event_reasons.active"
    active = _ask([program, "-i", "0", f"--query-gpu={why}", "--format=csv,noheader"])
    return {**found, why: active.strip()} if active else found


def _ask(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_ASK_SECS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def is_sticky(reason: str) -> bool:
    """Whether a reason names an error after which a process cannot use the GPU any more."""
    return any(word.lower() in reason.lower() for word in _STICKY)


def probe() -> str:
    """Say why a new process cannot use the GPU; empty if it can."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks._gpu_probe"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ASK_SECS,
        )
    except subprocess.TimeoutExpired:
        return f"a new process waits for it longer than {_ASK_SECS:.0f} s"
    if done.returncode == 0:
        return ""
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1] if lines else f"a probe ended with exit status {done.returncode}"
