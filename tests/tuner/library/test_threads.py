"""Number of threads that run a library."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.tuner.library.small_library import described
from tuner.errors import RequestError
from tuner.library import threads
from tuner.library.threads import VARIABLE, set_threads

_N_CORES = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, "")
    threads._of_the_user.cache_clear()
    yield
    threads._of_the_user.cache_clear()


def test_a_library_gets_the_threads_that_it_was_tuned_with() -> None:
    """At most one for each core of the process, whatever another library got."""
    numbers = []
    for n_cores in (1, 1000, 1):
        set_threads(described(device={"n_cores": n_cores}), None)
        numbers.append(os.environ[VARIABLE])

    assert numbers == ["1", str(_N_CORES), "1"]


def test_a_library_of_an_unknown_device_gets_all_cores() -> None:
    """Logs of other tuners do not say where they were measured."""
    set_threads(described(device={}), None)

    assert os.environ[VARIABLE] == str(_N_CORES)


def test_an_argument_is_no_default_of_other_libraries() -> None:
    """A library that is loaded later gets its own default."""
    numbers = []
    for n_threads in (1000, None):
        set_threads(described(device={"n_cores": 1}), n_threads)
        numbers.append(os.environ[VARIABLE])

    assert numbers == ["1000", "1"]


def test_the_variable_wins_over_the_default_and_an_argument_over_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An argument holds for its library alone."""
    monkeypatch.setenv(VARIABLE, "7")
    numbers = []
    for n_threads in (None, 3, None):
        set_threads(described(), n_threads)
        numbers.append(os.environ[VARIABLE])

    assert numbers == ["7", "3", "7"]
    with pytest.raises(RequestError, match="threads must be at least 1, got 0"):
        set_threads(described(), 0)


@pytest.mark.in_ci
@pytest.mark.slow("10 s: starts a process for each limit")
@pytest.mark.skipif(_N_CORES < 2, reason="TVM's own default is one thread, too")
def test_tvm_uses_as_many() -> None:
    """Its own default is half of the cores."""
    program = (
        "from tests.tuner.library.small_library import described\n"
        "from tuner.library.threads import set_threads\n"
        "set_threads(described(device={}), None)\n"
        "import tvm\n"
        "print(tvm.get_global_func('runtime.NumThreads')())"
    )
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=True
    )

    assert done.stdout.strip() == str(_N_CORES)
