"""Workers forked from a template: what they share, what they do not, and how either ends."""

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.tuner.executors import helpers
from tuner.errors import WorkerLost
from tuner.workers import worker_process
from tuner.workers.pool import Pool, WorkerSettings
from tuner.workers.processes import fork_server

HELPERS = helpers.NAME

Open = Callable[..., Pool]


@pytest.fixture
def open_pool(tmp_path: Path) -> Iterator[Open]:
    """Open pools of one worker each, with templates of this test's own."""
    pools: list[Pool] = []

    def opened(name: str = "worker", **environ: str) -> Pool:
        variables = {"TEST_FOLDER": str(tmp_path), **environ}
        pools.append(Pool(WorkerSettings(1, tmp_path / f"{name}.log", variables)))
        return pools[-1]

    yield opened
    for pool in pools:
        pool.close()


def test_pools_share_a_template_that_imported_for_them(open_pool: Open) -> None:
    """It runs none of their calls, and the processes have names of their own."""
    first, second = open_pool("first"), open_pool("second")
    counts = [pool.call(HELPERS, "count") for pool in (first, second)]
    workers = [psutil.Process(pool.call(HELPERS, "whoami")) for pool in (first, second)]

    assert counts == [1, 1]
    assert [worker.name() for worker in workers] == [worker_process.NAME] * 2
    (template,) = {worker.ppid() for worker in workers}
    assert psutil.Process(template).name() == fork_server.TEMPLATE_NAME
    assert psutil.Process(template).ppid() == os.getpid()


def test_the_current_folder_is_that_of_the_process(
    open_pool: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change between two calls, and paths of models are relative to it."""
    open_pool("first").call("os", "getcwd")
    monkeypatch.chdir(tmp_path)

    assert open_pool("second").call("os", "getcwd") == str(tmp_path)


def test_output_variables_and_temporary_files_are_those_of_the_worker(
    open_pool: Open, tmp_path: Path
) -> None:
    """Another variable has another template; all else differs among forks of one."""
    pools = [open_pool("first"), open_pool("second"), open_pool("third", TEST_WORD="other")]
    for number, pool in enumerate(pools):
        pool.call(HELPERS, "chatter", f"number {number}")
    words = [pool.call(HELPERS, "environ", "TEST_WORD") for pool in pools]
    folders = {pool.call(HELPERS, "environ", "TMPDIR") for pool in pools}
    made = {Path(pool.call("tempfile", "mkdtemp")).parent for pool in pools}

    assert words == [None, None, "other"]
    assert made == set(map(Path, folders))
    assert len(folders) == 3
    for number, name in enumerate(("first", "second", "third")):
        text = (tmp_path / f"{name}.log").read_text()
        assert [str(each) in text for each in range(3)] == [each == number for each in range(3)]


def test_a_change_of_our_variables_reaches_the_next_worker(
    open_pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template keeps those that it began with."""
    before = open_pool().call(HELPERS, "environ", "TUNER_TEST_TEMPLATE")
    monkeypatch.setenv("TUNER_TEST_TEMPLATE", "later")

    assert before is None
    assert open_pool().call(HELPERS, "environ", "TUNER_TEST_TEMPLATE") == "later"


def test_a_killed_template_costs_the_calls_of_its_workers_only(
    open_pool: Open, tmp_path: Path
) -> None:
    """They end with it; another takes its place."""
    pool, idle = open_pool("busy"), open_pool("idle")
    idle.call(HELPERS, "whoami")
    worker = psutil.Process(pool.call(HELPERS, "whoami"))
    begun = tmp_path / "begun"
    call = pool.submit(HELPERS, "hang", 600.0, str(begun))
    # Before it begins, another worker would take it.
    while not begun.exists():
        time.sleep(0.01)
    os.kill(worker.ppid(), signal.SIGKILL)

    with pytest.raises(WorkerLost):
        call.future.result(10.0)
    worker.wait(10.0)
    assert pool.call(HELPERS, "add", 2, 3) == 5


def test_a_template_ends_with_the_last_of_its_workers(open_pool: Open) -> None:
    """One that was used long ago makes room for others."""
    pools = [open_pool(str(number), TEST_WORD=str(number)) for number in range(6)]
    workers = [psutil.Process(pool.call(HELPERS, "whoami")) for pool in pools]
    templates = [psutil.Process(worker.ppid()) for worker in workers]
    assert len(set(templates)) == 6
    assert pools[0].call(HELPERS, "add", 2, 3) == 5
    pools[0].close()

    templates[0].wait(10.0)
    assert templates[-1].is_running()


@pytest.mark.parametrize("module", ["no_such_module", "tests.tuner.workers.module_that_exits"])
def test_a_module_that_cannot_be_imported_costs_its_call_only(open_pool: Open, module: str) -> None:
    """A template outlives the import."""
    pool = open_pool()
    template = psutil.Process(pool.call(HELPERS, "whoami")).ppid()
    other = open_pool("other")
    with pytest.raises(Exception, match=r"no_such_module|exited with status 3"):
        other.call(module, "add", 2, 3)

    assert psutil.Process(other.call(HELPERS, "whoami")).ppid() == template


def descriptors(template: int) -> set[int]:
    """Return the open files of a template that has closed those of its last request."""
    used: set[int] = set()
    while (seen := {int(path.name) for path in Path(f"/proc/{template}/fd").iterdir()}) != used:
        used = seen
        time.sleep(0.3)
    return used


def test_the_system_may_refuse_a_process(open_pool: Open) -> None:
    """A template that cannot open another file reports it, and forks once it can."""
    pool = open_pool()
    template = psutil.Process(pool.call(HELPERS, "whoami")).ppid()
    limits = resource.prlimit(template, resource.RLIMIT_NOFILE)
    other = open_pool("other")
    used = descriptors(template)
    # Three come with the request, and one more is needed for the process.
    free = [number for number in range(1000) if number not in used]
    resource.prlimit(template, resource.RLIMIT_NOFILE, (free[3], limits[1]))
    with pytest.raises(WorkerLost, match="the system refuses another process"):
        other.call(HELPERS, "add", 2, 3)
    resource.prlimit(template, resource.RLIMIT_NOFILE, limits)

    assert other.call(HELPERS, "add", 2, 3) == 5


def test_a_process_that_is_killed_while_its_template_imports_ends(
    open_pool: Open, tmp_path: Path
) -> None:
    """One that was forked ends at once, and one that was not does not begin."""
    pool, other = open_pool(), open_pool("other")
    template = psutil.Process(pool.call(HELPERS, "whoami")).parent()
    forked = psutil.Process(other.call(HELPERS, "whoami"))
    assert template is not None
    template.suspend()
    started = time.monotonic()
    other.close()
    assert time.monotonic() - started < fork_server.KILL_TIMEOUT_SECS
    own, theirs = socket.socketpair()
    with own, theirs:
        process = fork_server.fork(
            tmp_path / "worker.log",
            theirs,
            "",
            [],
            module=HELPERS,
            folder=tmp_path,
            environ={"TEST_FOLDER": str(tmp_path)},
            packages=(),
        )
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.kill()
        assert process.wait(0.0) == -signal.SIGKILL
        theirs.close()
        template.resume()
        assert not own.recv(1)
    forked.wait(60.0)
    assert len(template.children()) == 1
