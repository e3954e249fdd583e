"""Events around kernel calls give the times of a GPU, here of a runtime that counts."""

import ctypes
import platform
import subprocess
from pathlib import Path

import pytest

from tuner.engines.cuda import cuda_events
from tuner.engines.linker import find_compiler, link_shared
from tuner.engines.runtime import call_timers
from tuner.engines.runtime.call_timers import CallTimers
from tuner.errors import WorkError

_KERNELS = """
#include <stdint.h>
extern int64_t gpu_time;
int kernel_a(void *self, const void *arguments, int32_t n, void *r) { gpu_time += 3; return 0; }
int kernel_b(void *self, const void *arguments, int32_t n, void *r) { gpu_time += 5; return 0; }
"""
# No GPU runs here: a clock of whole milliseconds advances with every kernel and every event.
_RUNTIME = """
#include <stdint.h>
#include <stdlib.h>
int64_t gpu_time, stalled;
int cudaEventCreate(void **event) { *event = calloc(1, 8); return 0; }
int cudaEventRecord(void *event, void *stream) { *(int64_t *)event = gpu_time++; return 0; }
int cudaEventElapsedTime(float *ms, void *a, void *b) {
  *ms = *(int64_t *)b - *(int64_t *)a; return *ms < 0;
}
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
  stalled = (intptr_t)data; function(data); return 0;
}
int cudaDeviceSynchronize(void) { return 0; }
"""


def compile_shared(source: str, out: Path, *others: Path) -> Path:
    """Compile C into a shared library."""
    command = [find_compiler(), "-shared", "-fPIC", "-x", "c", "-", "-o", str(out)]
    subprocess.run([*command, "-x", "none", *map(str, others)], input=source.encode(), check=True)
    return out


@pytest.fixture
def libraries(tmp_path: Path) -> tuple[Path, Path]:
    """A library of two kernels behind three timed calls, and a runtime."""
    runtime = compile_shared(_RUNTIME, tmp_path / "runtime.so")
    ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    kernels, timers = tmp_path / "kernels.o", tmp_path / "timers.o"
    command = [find_compiler(), "-c", "-fPIC", "-x", "c", "-", "-o", str(kernels)]
    subprocess.run(command, input=_KERNELS.encode(), check=True)
    calls = {"call_0": "kernel_a", "call_1": "kernel_b", "call_2": "kernel_a"}
    call_timers.compile_timers(calls, platform.machine(), timers)
    link_shared([kernels, timers, runtime], tmp_path / "lib.so")
    return tmp_path / "lib.so", runtime


def test_calls_have_the_times_of_their_events(libraries: tuple[Path, Path]) -> None:
    """Start and duration are those of the GPU; the stream waits until all is launched."""
    library, runtime = libraries
    loaded = ctypes.CDLL(str(library))

    def launch() -> None:
        for name in ("call_1", "call_0"):
            getattr(loaded, name)(None, None, ctypes.c_int32(0), None)

    timers = CallTimers.open(library, 3)
    events = cuda_events.open_timers(timers, str(library), str(runtime))
    run = events.profile(launch, 0.001)

    assert [call.call for call in run.calls] == [1, 0]
    assert [call.secs for call in run.calls] == pytest.approx([0.006, 0.004])
    assert [call.start_secs for call in run.calls] == pytest.approx([0.001, 0.008])
    assert run.secs == pytest.approx(0.012)
    assert ctypes.c_int64.in_dll(ctypes.CDLL(str(runtime)), "stalled").value == 2_000_000

    launch()
    assert timers.stop() == []


def test_a_runtime_that_fails_is_reported(libraries: tuple[Path, Path], tmp_path: Path) -> None:
    """The message names the function."""
    library, _ = libraries
    broken = compile_shared("int cudaEventCreate(void **e) { return 100; }", tmp_path / "broken.so")
    timers = CallTimers.open(library, 3)

    with pytest.raises(
        WorkError, match="cudaEventCreate of the CUDA runtime fails with status 100"
    ):
        cuda_events.open_timers(timers, str(library), str(broken))
