"""Times of the kernel calls of a library on a GPU, by events of the CUDA runtime.

An event gets its time when the GPU reaches it. If the GPU waited for the host between two of them,
they would time the launch: so the stream is stalled until the host has launched the whole network.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner.engines.base import ProfiledRun, TimedCall
from tuner.engines.runtime.call_timers import STALL, CallTimers
from tuner.errors import WorkError

# The stall is this many times what the host needs to launch the network, within a limit.
_STALL_FACTOR, _MAX_STALL_SECS = 2.0, 0.2
_DEFAULT_STREAM = None


@dataclass
class EventTimers:
    """Timers of a library whose calls run on a GPU.

    Attributes:
        runtime: The CUDA runtime, loaded by ctypes.
        stall: Function of the library that sleeps, as the runtime calls it.
    """

    timers: CallTimers
    runtime: Any
    stall: Any

    def __post_init__(self) -> None:
        if self.timers.record is None:
            raise WorkError("the library has no timers for a GPU: build it again")
        self._events = (ctypes.c_void_p * (2 * len(self.timers.buffer)))()
        self._first = ctypes.c_void_p()
        for number in range(len(self._events)):
            event = ctypes.c_void_p()
            self._check("cudaEventCreate", ctypes.byref(event))
            self._events[number] = event.value
        self._check("cudaEventCreate", ctypes.byref(self._first))

    def profile(self, launch: Callable[[], object], launch_secs: float) -> ProfiledRun:
        """Run a network once and return the times of its calls on the GPU.

        Args:
            launch: Launches the network, without waiting for its end.
            launch_secs: Seconds that the launch takes the host.

        Raises:
            WorkError: If the runtime fails.
        """
        secs = min(_STALL_FACTOR * launch_secs, _MAX_STALL_SECS)
        nanoseconds = ctypes.c_void_p(int(secs * 1e9))
        self._check("cudaLaunchHostFunc", _DEFAULT_STREAM, self.stall, nanoseconds)
        self._check("cudaEventRecord", self._first, _DEFAULT_STREAM)
        self.timers.record(self.runtime.cudaEventRecord, self._events)
        self.timers.start()
        try:
            launch()
        finally:
            spans = self.timers.stop()
            self.timers.record(None, None)
        self._check("cudaDeviceSynchronize")
        calls = tuple(
            TimedCall(
                call, start := self._since(2 * position), self._since(2 * position + 1) - start
            )
            for position, (call, _, _) in enumerate(spans)
        )
        end = max((call.start_secs + call.secs for call in calls), default=0.0)
        return ProfiledRun(end, calls)

    def _since(self, position: int) -> float:
        """Return the seconds from the first event of a run to another one."""
        elapsed = ctypes.c_float()
        event = ctypes.c_void_p(self._events[position])
        self._check("cudaEventElapsedTime", ctypes.byref(elapsed), self._first, event)
        return elapsed.value / 1e3

    def _check(self, function: str, *arguments: Any) -> None:
        status = getattr(self.runtime, function)(*arguments)
        if status:
            raise WorkError(f"{function} of the CUDA runtime fails with status {status}")


def open_timers(timers: CallTimers, library: str, runtime: str) -> EventTimers:
    """Return the timers of a loaded library for a GPU.

    Args:
        library: Path of the library.
        runtime: Path or name of the CUDA runtime that the process uses.

    Raises:
        WorkError: If the library has no events, or the runtime fails.
    """
    stall = getattr(ctypes.CDLL(library), STALL, None)
    return EventTimers(timers, ctypes.CDLL(runtime), stall)


def time_launch(launch: Callable[[], object], wait: Callable[[], object]) -> float:
    """Return the seconds that a launch takes the host; the network has ended on return."""
    start = time.perf_counter()
    launch()
    secs = time.perf_counter() - start
    wait()
    return secs
