"""The threads of a library run every task of a parallel loop once, whatever else happens."""

import ctypes
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.engines.linker import compile_c, link_shared
from tuner.engines.runtime.thread_pool import compile_pool

# A kernel calls through a pointer that TVM's runtime would set. Loops count their runs by task.
_KERNEL = """
#include <stdatomic.h>
#include <time.h>
typedef struct { void *sync; int n_tasks; } group;
typedef int (*loop)(int, group *, void *);
extern __attribute__((weak)) int (*__TVMBackendParallelLaunch)(loop, void *, int);

int run(loop body, void *data) { return __TVMBackendParallelLaunch(body, data, 0); }

int count(int task, group *of, void *data) {
  atomic_fetch_add((atomic_int *)data + task, 1);
  atomic_store((atomic_int *)data + 63, of->n_tasks);
  return 0;
}
int wait(int task, group *of, void *data) {
  struct timespec time = {0, task ? 20000000 : 0};
  nanosleep(&time, 0);
  return count(task, of, data);
}
int fail(int task, group *of, void *data) {
  return task == of->n_tasks - 1 ? -1 : count(task, of, data);
}
int nest(int task, group *of, void *data) { return task ? run(count, data) : 0; }
int run_often(int n, void *data) {
  for (int i = 0; i < n; i++) if (run(count, data)) return -1;
  return 0;
}
"""
_N_THREADS = 3
_Counts = ctypes.c_int * 64


class _Library:
    """A kernel with threads of its own."""

    def __init__(self, path: Path) -> None:
        self.loaded = ctypes.CDLL(str(path))

    def run(self, loop: str) -> tuple[int, list[int]]:
        """Run a loop; return its status, and how often each task ran."""
        counts = _Counts()
        status = self.loaded.run(getattr(self.loaded, loop), ctypes.byref(counts))
        return status, list(counts)[: counts[63]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library of loops with the thread pool."""
    folder = tmp_path_factory.mktemp("threads")
    kernel = folder / "kernel.o"
    compile_c(_KERNEL, platform.machine(), kernel)
    link_shared([kernel, *compile_pool([kernel], folder)], folder / "lib.so")
    return folder / "lib.so"


@pytest.fixture
def library(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Library]:
    """The library, loaded with three threads and unloaded after the test."""
    monkeypatch.setenv("TVM_NUM_THREADS", str(_N_THREADS))
    opened = _Library(path)
    yield opened
    _unload(opened)


def _unload(library: _Library) -> None:
    close = ctypes.CDLL(None).dlclose
    close.argtypes = (ctypes.c_void_p,)
    close(library.loaded._handle)


def _threads() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize("loop", ["count", "wait"])
def test_every_task_runs_once(library: _Library, loop: str) -> None:
    """Also when the caller has nothing left to do for longer than it spins."""
    for _ in range(20):
        assert library.run(loop) == (0, [1] * _N_THREADS)


def test_a_failure_of_any_task_is_one_of_the_loop(library: _Library) -> None:
    """The next loop begins without it."""
    assert library.run("fail")[0] == -1
    assert library.run("count") == (0, [1] * _N_THREADS)


def test_callers_at_the_same_time_disturb_nothing(library: _Library) -> None:
    """Loops of several threads, and a loop within a loop, each run all of their tasks."""
    n_runs, n_callers = 3000, 4
    counts = [_Counts() for _ in range(n_callers)]
    callers = [
        threading.Thread(target=library.loaded.run_often, args=(n_runs, ctypes.byref(count)))
        for count in counts
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()

    assert [list(count)[:_N_THREADS] for count in counts] == [[n_runs] * _N_THREADS] * n_callers
    assert library.run("nest") == (0, [_N_THREADS - 1] * _N_THREADS)


def test_threads_sleep_after_a_loop_and_wake_for_the_next(library: _Library) -> None:
    """A thread that waits for a loop takes no processor time."""
    library.run("count")
    threading.Event().wait(0.1)
    before = os.times()
    threading.Event().wait(0.5)
    after = os.times()

    assert after.user + after.system - before.user - before.system < 0.1
    assert library.run("count") == (0, [1] * _N_THREADS)


def test_unloading_ends_the_threads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their code goes with the library."""
    before = _threads()
    for n_threads in (2, 4):
        monkeypatch.setenv("TVM_NUM_THREADS", str(n_threads))
        library = _Library(path)
        assert library.run("count") == (0, [1] * n_threads)
        assert len(_threads() - before) == n_threads - 1
        _unload(library)
        assert _threads() == before


@pytest.mark.parametrize("value", ["", "0", "-1", "many"])
def test_without_a_number_each_core_gets_a_thread(
    path: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each core that the process may use."""
    monkeypatch.setenv("TVM_NUM_THREADS", value)
    library = _Library(path)

    assert library.run("count") == (0, [1] * len(os.sched_getaffinity(0)))
    _unload(library)


_PROGRAM = """
import os, sys
from pathlib import Path
from tests.tuner.engines.runtime.test_thread_pool import _Library
library = _Library(Path(sys.argv[1]))
status, parent = library.run("count")
child = os.fork()
if child == 0:
    os._exit(0 if library.run("count") == (0, parent) else 1)
print(os.waitpid(child, 0)[1], library.run("count") == (0, parent))
"""
_EXIT_OF_CHILD = """
if child == 0:
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


def _printed(program: str, path: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "TVM_NUM_THREADS": str(_N_THREADS)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_a_forked_process_gets_threads_of_its_own(path: Path) -> None:
    """Threads do not survive a fork."""
    assert _printed(_PROGRAM, path) == ["0", "True"]


def test_a_process_may_fork_after_the_library_is_unloaded(path: Path) -> None:
    """Nothing of the library is called any more."""
    program = _PROGRAM.replace("child = os.fork()", "_unload(library)\nchild = os.fork()")
    program = program.replace("_Library\n", "_Library, _unload\n")
    program = program[: program.index("if child")] + _EXIT_OF_CHILD

    assert _printed(program, path) == ["0"]


def test_a_linker_without_a_compiler_driver_finds_all_functions(path: Path) -> None:
    """It has the C library of the process that loads, and nothing that is linked statically."""
    names = subprocess.run(
        ["nm", "-D", "--undefined-only", "--format=just-symbols", str(path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    functions = {name.partition("@")[0] for name in names} - {"__cxa_finalize"}

    assert functions
    missing = [name for name in functions if not hasattr(ctypes.CDLL(None), name)]
    assert [name for name in missing if not name.startswith("_ITM_")] == []
    assert functions.isdisjoint({"pthread_atfork", "atexit"})  # in libc_nonshared.a


def test_threads_that_share_a_core_with_another_process(library: _Library) -> None:
    """The caller runs the tasks that they have not begun."""
    before = _threads()
    library.run("count")
    core = min(os.sched_getaffinity(0))
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        workers = _threads() - before
        assert len(workers) == _N_THREADS - 1
        for task in {*workers, busy.pid}:
            os.sched_setaffinity(task, {core})
        counts = _Counts()
        assert library.loaded.run_often(2000, ctypes.byref(counts)) == 0
    finally:
        busy.kill()
        busy.wait()
    assert list(counts)[:_N_THREADS] == [2000] * _N_THREADS
