"""Timers record the calls of compiled kernels while they are on, and only then."""

import ctypes
import platform
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from tuner.engines.linker import find_compiler, link_shared
from tuner.engines.runtime import call_timers
from tuner.engines.runtime.call_timers import CallTimers
from tuner.errors import WorkError

_KERNELS = """
#include <stdint.h>
int kernel_a(void *self, const void *arguments, int32_t n, void *result) { return n; }
int kernel_b(void *self, const void *arguments, int32_t n, void *result) { return -1; }
"""
_CALLS = {"call_0": "kernel_a", "call_1": "kernel_b", "call_2": "kernel_a"}


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library of two kernels behind three timed calls."""
    kernels, timers = tmp_path / "kernels.o", tmp_path / "timers.o"
    command = [find_compiler(), "-c", "-fPIC", "-x", "c", "-", "-o", str(kernels)]
    subprocess.run(command, input=_KERNELS.encode(), check=True)
    call_timers.compile_timers(_CALLS, platform.machine(), timers)
    link_shared([kernels, timers], tmp_path / "lib.so")
    return tmp_path / "lib.so"


def call(library: Path, name: str, n: int = 7) -> int:
    """Call a kernel through its timer."""
    function = getattr(ctypes.CDLL(str(library)), name)
    return int(function(None, None, ctypes.c_int32(n), None))


def test_calls_return_what_their_kernels_return(library: Path) -> None:
    """A timer passes arguments and status on, whether it is on or not."""
    timers = CallTimers.open(library, 2)

    assert [call(library, "call_0", 5), call(library, "call_1")] == [5, -1]
    timers.start()
    assert [call(library, "call_2", 6), call(library, "call_1")] == [6, -1]
    timers.stop()


def test_calls_are_recorded_in_order_while_timers_are_on(library: Path) -> None:
    """Numbers are positions among the calls; a call ends after it starts."""
    timers = CallTimers.open(library, 3)
    call(library, "call_0")
    timers.start()
    for name in ("call_2", "call_1", "call_0"):
        call(library, name)
    spans = timers.stop()
    call(library, "call_0")

    assert [number for number, _, _ in spans] == [2, 1, 0]
    assert all(start <= end for _, start, end in spans)
    assert all(before[2] <= after[1] for before, after in pairwise(spans))
    assert timers.stop() == []


def test_calls_beyond_the_buffer_are_not_recorded(library: Path) -> None:
    """A full buffer is not written past its end."""
    timers = CallTimers.open(library, 1)
    timers.start()
    call(library, "call_0")
    call(library, "call_1")

    assert [number for number, _, _ in timers.stop()] == [0]


def test_a_library_without_timers_is_refused(tmp_path: Path) -> None:
    """The message names the library."""
    kernels = tmp_path / "kernels.o"
    command = [find_compiler(), "-c", "-fPIC", "-x", "c", "-", "-o", str(kernels)]
    subprocess.run(command, input=_KERNELS.encode(), check=True)
    link_shared([kernels], tmp_path / "lib.so")

    with pytest.raises(WorkError, match=r"lib\.so cannot be timed"):
        CallTimers.open(tmp_path / "lib.so", 1)
