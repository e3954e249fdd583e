"""Timers around the kernel calls of a library, switched on only while it is profiled.

A timer can also show the arguments of its call to an observer, and record events of a GPU before
and after the call, as the clock of the host shows when a kernel is launched, not when it runs.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tuner.engines.linker import compile_c
from tuner.errors import WorkError, summary

#: Version of the timers, which is part of the key of a library in the build cache.
VERSION = 2
_SWITCH, OBSERVE = "tuner_time_calls", "tuner_observe_calls"
_RECORD, STALL = "tuner_record_events", "tuner_stall"
# A kernel has the calling convention of TVM's FFI. A timer that is off costs one branch.
_SOURCE = f"""
#include <stdint.h>
#include <time.h>

typedef struct {{ int64_t start, end, call; }} span;
static span *spans;
static int64_t capacity, count;
static void (*observe)(int64_t, const void *, int32_t);
static int is_on;

int64_t {_SWITCH}(span *buffer, int64_t size) {{
  int64_t recorded = count;
  spans = buffer, capacity = size, count = 0;
  is_on = spans || observe;
  return recorded;
}}

void {OBSERVE}(void (*observer)(int64_t, const void *, int32_t)) {{
  observe = observer;
  is_on = spans || observe;
}}

static int (*record)(void *, void *);
static void **events;

void {_RECORD}(int (*function)(void *, void *), void **buffer) {{
  record = function, events = buffer;
}}

void {STALL}(void *nanoseconds) {{
  int64_t rest = (intptr_t)nanoseconds;
  struct timespec time = {{rest / INT64_C(1000000000), rest % INT64_C(1000000000)}};
  nanosleep(&time, 0);
}}

static int64_t now(void) {{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}}

#define TIMED(index, name, kernel) \\
  int kernel(void *, const void *, int32_t, void *); \\
  int name(void *self, const void *arguments, int32_t n_arguments, void *result) {{ \\
    if (__builtin_expect(!is_on, 1)) return kernel(self, arguments, n_arguments, result); \\
    int marks = record && count < capacity; \\
    if (marks) record(events[2 * count], 0); \\
    int64_t start = now(); \\
    int status = kernel(self, arguments, n_arguments, result); \\
    if (marks) record(events[2 * count + 1], 0); \\
    if (count < capacity) spans[count++] = (span){{start, now(), index}}; \\
    if (observe && !status) observe(index, arguments, n_arguments); \\
    return status; \\
  }}
"""


def compile_timers(calls: Mapping[str, str], machine: str, out: Path) -> None:
    """Compile a timer for each call into an object file.

    Args:
        calls: Symbol of the kernel by symbol of the call; both follow the calling convention of
            TVM's FFI. The position of a call is its number in what a profile records.
        machine: Machine of the objects, the first word of a triple.
        out: Object file to write.

    Raises:
        WorkError: If no C compiler for the machine is installed, or it fails.
    """
    lines = (
        f"TIMED({number}, {call}, {kernel})" for number, (call, kernel) in enumerate(calls.items())
    )
    compile_c("\n".join((_SOURCE, *lines, "")), machine, out)


class _Span(ctypes.Structure):
    """Nanoseconds of the clock of ``time.perf_counter`` at start and end, and the call."""

    _fields_ = (("start", ctypes.c_int64), ("end", ctypes.c_int64), ("call", ctypes.c_int64))


@dataclass(frozen=True)
class CallTimers:
    """The timers of a library that is loaded in this process.

    Attributes:
        switch: Function that gives the timers a buffer, or takes it away; it returns how many
            calls were recorded since it was called before.
        buffer: Room for the calls of one run.
        record: Function that gives the timers a function and the events that it records, two for
            each call, or takes them away.
    """

    switch: Any
    buffer: Any
    record: Any

    @classmethod
    def open(cls, library: Path, n_calls: int) -> Self:
        """Find the timers of a library.

        Args:
            library: Path of the shared library.
            n_calls: Number of calls of a run.

        Raises:
            WorkError: If the library has none.
        """
        try:
            loaded = ctypes.CDLL(str(library))
            switch, record = getattr(loaded, _SWITCH), getattr(loaded, _RECORD, None)
        except (OSError, AttributeError) as error:
            raise WorkError(
                f"the kernels of {library} cannot be timed: {summary(error)}"
            ) from error
        switch.argtypes = (ctypes.c_void_p, ctypes.c_int64)
        switch.restype = ctypes.c_int64
        if record is not None:
            record.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
            record.restype = None
        return cls(switch, (_Span * n_calls)(), record)

    def start(self) -> None:
        """Record the calls from now on."""
        self.switch(self.buffer, len(self.buffer))

    def stop(self) -> list[tuple[int, int, int]]:
        """Stop; return number, start and end of each call, nanoseconds of ``perf_counter``."""
        recorded = self.switch(None, 0)
        return [(span.call, span.start, span.end) for span in self.buffer[:recorded]]
