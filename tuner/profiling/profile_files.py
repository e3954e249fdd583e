"""A profile as files: a page and a trace.

A trace is in the Trace Event Format, which Perfetto and Chromium's tracing page open:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.profiling.page import as_page
from tuner.profiling.results import LibraryProfile

_MICROSECONDS = 1e6
_PROCESS, _THREAD = 1, 1


def as_trace(profile: LibraryProfile) -> dict[str, Any]:
    """Return the trace of one run, at the median times of each call."""
    verdicts = {kernel.workload: kernel.verdict for kernel in profile.kernels}
    events: list[dict[str, Any]] = [
        _metadata("process_name", profile.model_name),
        _metadata("thread_name", "kernels"),
    ]
    start_secs = 0.0
    for call in profile.calls:
        # Medians of starts and of durations would overlap: the calls follow each other.
        start_secs += max(call.gap_secs, 0.0)
        events.append(
            {
                "name": call.name,
                "ph": "X",
                "ts": start_secs * _MICROSECONDS,
                "dur": call.secs * _MICROSECONDS,
                "pid": _PROCESS,
                "tid": _THREAD,
                "args": {
                    "kernel": call.kernel,
                    "workload": call.workload,
                    "nodes": ", ".join(call.nodes) or "unknown",
                    "verdict": verdicts[call.workload].reason,
                },
            }
        )
        start_secs += call.secs
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _metadata(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": _PROCESS, "tid": _THREAD, "args": {"name": value}}


def write(profile: LibraryProfile, html: Path | None, trace: Path | None) -> None:
    """Write the files that have a path.

    Raises:
        RequestError: If a file cannot be written.
    """
    if html is not None:
        write_text(html, as_page(profile), "html")
    if trace is not None:
        write_text(trace, json.dumps(as_trace(profile)), "trace")


def write_text(path: Path, text: str, field: str) -> None:
    """Write a file that a user named.

    Raises:
        RequestError: If it cannot be written.
    """
    try:
        path.write_text(text)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}", field=field) from error
