"""Worker processes: time-outs, deaths, output, and the pool after each of them."""

import contextlib
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.cli import ROOT
from tests.tuner.executors import helpers
from tests.waiting import has_ended, wait_for
from tuner.engines.base import BuildResult
from tuner.engines.environments import Interpreter
from tuner.errors import (
    DeviceApart,
    LinkError,
    MalformedAnswer,
    ModelError,
    OutOfMemory,
    RequestError,
    TargetError,
    WorkerLost,
    WorkError,
)
from tuner.settings import Settings
from tuner.workers import messages, worker_handle
from tuner.workers.confinement.environment import MACHINE_CORES
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import CallTimeout, Pool, WorkerSettings
from tuner.workers.processes import fork_server

HELPERS = helpers.NAME


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """A pool of one worker."""
    with Pool(WorkerSettings(1, tmp_path / "logs" / "worker.log", {"FROM_POOL": "yes"})) as opened:
        yield opened


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool of two workers, which several tests share."""
    with Pool(WorkerSettings(2, tmp_path_factory.mktemp("pair") / "worker.log")) as opened:
        yield opened


def test_call_returns_what_the_function_returns(pool: Pool) -> None:
    """Arguments reach the worker, and the result comes back."""
    assert pool.call(HELPERS, "add", 2, 3) == 5
    assert len(pool.call(HELPERS, "large", 5_000_000)) == 5_000_000


def test_worker_is_another_process_and_stays_warm(pool: Pool) -> None:
    """One other process serves call after call."""
    pids = {pool.call(HELPERS, "whoami") for _ in range(3)}

    assert len(pids) == 1
    assert os.getpid() not in pids
    assert [pool.call(HELPERS, "count") for _ in range(3)] == [1, 2, 3]


def test_environment_is_set_in_workers_only(pool: Pool) -> None:
    """The variables of a pool do not leak into the coordinator."""
    assert pool.call(HELPERS, "environ", "FROM_POOL") == "yes"
    assert "FROM_POOL" not in os.environ


def test_a_pool_whose_thread_cannot_start_refuses_the_call_and_not_the_next(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit on threads may be reached for a moment."""
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(WorkerLost, match="no thread can be started: can't start new thread"):
            pool.call(HELPERS, "add", 2, 3)

    assert pool.call(HELPERS, "add", 2, 3) == 5


def _no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_every_call_fails_while_no_worker_can_be_started(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls outnumber workers; none is left behind to wait for ever."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise BlockingIOError("too many processes")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        patch.setattr(fork_server, "_templates", {})
        calls = [pool.submit(HELPERS, "add", 2, 3) for _ in range(3)]
        for call in calls:
            with pytest.raises(WorkerLost, match="no worker can be started: too many processes"):
                call.future.result(10.0)

    assert pool.call(HELPERS, "add", 2, 3) == 5


def test_a_worker_that_the_kernel_does_not_end_holds_up_no_call(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its call times out, as that of a GPU that hangs may, and another worker takes the next."""
    stuck = pool.call(HELPERS, "whoami")
    wait = fork_server.ForkedProcess.wait

    def never(process: fork_server.ForkedProcess, timeout_secs: float) -> int:
        if timeout_secs and process.pid == stuck:
            raise subprocess.TimeoutExpired("a worker", timeout_secs)
        return wait(process, timeout_secs)

    monkeypatch.setattr(fork_server.ForkedProcess, "wait", never)
    with pytest.raises(CallTimeout):
        pool.call(HELPERS, "hang", timeout_secs=0.2)

    assert pool.call(HELPERS, "whoami") != stuck
    assert f"worker {stuck} does not end" in caplog.text


def test_the_kernel_would_kill_a_worker_before_its_coordinator(pool: Pool) -> None:
    """Linux chooses the process with the highest score when memory runs out."""
    path = "/proc/self/oom_score_adj"

    assert int(pool.call(HELPERS, "read_text", path)) > int(helpers.read_text(path))


def test_exception_of_the_function_is_raised(pool: Pool) -> None:
    """An error keeps its name and text, and the worker lives on."""
    before = pool.call(HELPERS, "whoami")

    with pytest.raises(WorkError, match="LookupError: the reason"):
        pool.call(HELPERS, "fail", "the reason")
    assert pool.call(HELPERS, "whoami") == before


def test_tuner_error_keeps_its_type(pool: Pool) -> None:
    """An error that the tuner raises on purpose comes back unchanged, exit status included."""
    with pytest.raises(RequestError, match=r"^not like this$"):
        pool.call(HELPERS, "refuse", "not like this")


def test_timeout_kills_and_replaces(pool: Pool) -> None:
    """A call that takes too long ends, even if it ignores SIGTERM; the next one is served."""
    before = pool.call(HELPERS, "whoami")

    with pytest.raises(CallTimeout):
        pool.call(HELPERS, "hang", timeout_secs=0.2)

    assert pool.call(HELPERS, "whoami") != before
    assert not psutil.pid_exists(before)


def test_timeout_counts_from_when_a_worker_takes_the_call(pool: Pool) -> None:
    """The time a call waits behind others does not count."""
    slow = [pool.submit(HELPERS, "hang", 0.4, timeout_secs=5.0) for _ in range(3)]
    last = pool.submit(HELPERS, "add", 1, 1, timeout_secs=1.0)

    assert [call.result() for call in slow] == [None] * 3
    assert last.result() == 2


@pytest.mark.parametrize(
    ("number", "crashed"),
    [
        (signal.SIGSEGV, True),
        (signal.SIGABRT, True),
        (signal.SIGFPE, True),
        (signal.SIGKILL, False),
        (signal.SIGTERM, False),
    ],
)
def test_death_is_reported_with_its_signal(
    pool: Pool, number: signal.Signals, crashed: bool
) -> None:
    """The error names the signal and says whether the worker crashed; the worker is replaced."""
    with pytest.raises(WorkerLost, match=number.name) as caught:
        pool.call(HELPERS, "die", int(number))

    assert caught.value.crashed is crashed
    assert caught.value.killed is (number == signal.SIGKILL)
    assert pool.call(HELPERS, "add", 1, 2) == 3


def test_a_stop_of_all_processes_is_left_to_the_coordinator(pool: Pool, tmp_path: Path) -> None:
    """A manager of services sends SIGTERM to workers, too; their calls go on."""
    process_id = pool.call(HELPERS, "whoami")
    call = pool.submit(HELPERS, "wait_for_file", str(tmp_path / "marker"), timeout_secs=60.0)

    os.kill(process_id, signal.SIGTERM)
    (tmp_path / "marker").touch()

    assert call.result() == "made"
    assert pool.call(HELPERS, "whoami") == process_id


def test_a_worker_that_its_pool_kills_was_not_killed(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that closes its connection and goes on is at fault itself."""
    monkeypatch.setattr(worker_handle, "_EXIT_TIMEOUT_SECS", 0.1)

    with pytest.raises(WorkerLost, match="closed its connection") as caught:
        pool.call(HELPERS, "close_connection")

    assert not caught.value.killed
    assert pool.call(HELPERS, "add", 1, 2) == 3


def test_exit_of_a_worker_is_reported_with_its_status(pool: Pool) -> None:
    """A library that calls exit() loses its worker, not the pool."""
    with pytest.raises(WorkerLost, match="status 3"):
        pool.call(HELPERS, "leave", 3)

    assert pool.call(HELPERS, "add", 1, 2) == 3


def test_exit_with_status_zero_is_reported_too(pool: Pool) -> None:
    """A worker that exits in the middle of a call loses it at once."""
    with pytest.raises(WorkerLost, match="status 0"):
        pool.call(HELPERS, "leave", 0, timeout_secs=20.0)

    assert pool.call(HELPERS, "add", 1, 2) == 3


def test_retired_worker_answers_and_is_replaced(pool: Pool) -> None:
    """Its answer arrives, the next call is lost before it begins, and the one after is served."""
    before = pool.call(HELPERS, "retire")

    with pytest.raises(WorkerLost, match="status 75") as caught:
        pool.call(HELPERS, "add", 1, 2)

    assert not caught.value.crashed
    assert pool.call(HELPERS, "add", 1, 2) == 3
    assert pool.call(HELPERS, "whoami") != before


def test_idle_worker_that_is_killed_is_replaced(pool: Pool) -> None:
    """Killing an idle worker costs no call."""
    for _ in range(3):
        worker = pool.call(HELPERS, "whoami")
        os.kill(worker, signal.SIGKILL)
        wait_for(partial(has_ended, worker))
        time.sleep(0.5)
        assert pool.call(HELPERS, "add", 1, 2) == 3


def test_call_made_while_its_idle_worker_dies_is_served_or_lost(pool: Pool) -> None:
    """Either way it ends soon, and the call that repeats it is served."""
    for _ in range(5):
        worker = psutil.Process(pool.call(HELPERS, "whoami"))
        worker.kill()
        call = pool.submit(HELPERS, "add", 1, 2, timeout_secs=20.0)
        assert futures.wait([call.future], 40).done, "the call is neither served nor lost"
        with contextlib.suppress(WorkerLost):
            assert call.result() == 3
        assert pool.call(HELPERS, "add", 1, 2, timeout_secs=20.0) == 3


def test_one_of_several_workers_is_killed_in_a_batch(tmp_path: Path) -> None:
    """Only the call in the killed worker is lost."""
    with Pool(WorkerSettings(2, tmp_path / "worker.log")) as pool:
        marker = tmp_path / "died"
        calls = [pool.submit(HELPERS, "add", i, i) for i in range(20)]
        calls.insert(5, pool.submit(HELPERS, "die_once", str(marker)))
        calls += [pool.submit(HELPERS, "add", i, i) for i in range(20)]
        lost = 0
        for call in calls:
            try:
                call.result()
            except WorkerLost:
                lost += 1
        assert lost == 1
        assert pool.call(HELPERS, "die_once", str(marker)) == "alive"


@pytest.mark.parametrize("function", ["unsendable", "large"])
def test_result_that_cannot_be_sent_is_an_error(
    pool: Pool, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call raises WorkError: it is not data, or too large; the next call is served."""
    monkeypatch.setattr(messages, "MAX_ANSWER_BYTES", 1000)
    args = (1000,) if function == "large" else ()
    before = pool.call(HELPERS, "whoami")

    with pytest.raises(WorkError):
        pool.call(HELPERS, function, *args, timeout_secs=10.0)

    assert pool.call(HELPERS, "whoami") == before


class _Exploit:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._path,))


def garbage(path: Path) -> dict[str, bytes]:
    """Return what a worker of an attacker may write, by name."""
    exploit = pickle.dumps(_Exploit(path))
    noise = random.Random(0).randbytes(10_000)
    return {
        "pickle": exploit,
        "pickle in a message": messages.framed(exploit),
        "pickle as multiprocessing sends it": struct.pack("!i", len(exploit)) + exploit,
        "noise": noise,
        "noise in a message": messages.framed(noise),
        "nothing": messages.framed(b""),
        "huge size": struct.pack(">Q", 2**63) + noise,
        "huge array": messages.framed(b"\x92\xdd\xff\xff\xff\xff\xc0"),
        "deep nesting": messages.framed(b"\x92" + b"\x91" * 1_000_000 + b"\xc0\xc0"),
        "two answers": 2 * messages.framed(messages.encode(1)),
        "unknown fields": messages.framed(msgspec.msgpack.encode((1, None, 3))),
    }


@pytest.mark.parametrize("name", garbage(Path()))
def test_garbage_of_a_worker_costs_its_call_alone(pair: Pool, tmp_path: Path, name: str) -> None:
    """Nothing is executed; the worker is ended and counts as crashed; others go on."""
    marker = tmp_path / "executed"
    other = pair.submit(HELPERS, "hang", 0.2)
    pair.call(HELPERS, "whoami")
    before = set(pair.process_ids)

    with pytest.raises(WorkerLost, match="what is not an answer") as caught:
        pair.call(HELPERS, "send_raw", garbage(marker)[name], timeout_secs=20.0)

    assert caught.value.crashed
    assert other.result() is None
    assert pair.call(HELPERS, "add", 1, 2) == 3
    assert len(before.intersection(pair.process_ids)) == 1
    assert not marker.exists()


def test_half_a_message_ends_with_the_time_of_its_call(pool: Pool) -> None:
    """The worker is killed, and the next call is served."""
    with pytest.raises(CallTimeout):
        pool.call(HELPERS, "send_raw", struct.pack(">Q", 100) + b"half", timeout_secs=0.5)

    assert pool.call(HELPERS, "add", 1, 2) == 3


def test_message_of_an_idle_worker_is_not_the_answer_of_the_next_call(pool: Pool) -> None:
    """The worker is ended, and another one serves the call."""
    forged = messages.framed(messages.encode(666))
    before = pool.call(HELPERS, "send_raw", forged, 0.2)
    wait_for(lambda: before not in pool.process_ids)

    assert pool.call(HELPERS, "add", 1, 2) == 3


@pytest.mark.parametrize(
    "value", [None, 3, [b"text"], {"artifact": 3}, {"error_text": "no artifact"}]
)
def test_value_of_another_type_fails_the_call_alone(pair: Pool, value: Any) -> None:
    """The worker lives on: an engine may have such an error."""
    before = set(pair.process_ids)

    with pytest.raises(MalformedAnswer, match="did not return BuildResult"):
        pair.call(HELPERS, "identity", value, returns=BuildResult)

    assert set(pair.process_ids) >= before


@pytest.mark.parametrize(
    "error",
    [
        RequestError("wrong", field="trials"),
        ModelError("bad", code="no-kernels"),
        TargetError("unknown"),
        WorkError(""),
        LinkError("two lines\nof text"),
        DeviceApart("too slow"),
        WorkerLost("crashed", crashed=True),
        FileNotFoundError(2, "No such file", "/path/\udcff"),
        OSError(28, "No space left on device"),
        TimeoutError("late"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_keeps_its_type_and_its_attributes(pair: Pool, error: Exception) -> None:
    """Those of the tuner and of the system cross processes unchanged."""
    with pytest.raises(type(error)) as caught:
        pair.call(HELPERS, "raise_error", error)

    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error).replace("\\udcff", r"\\udcff")
    assert {**vars(caught.value)} == {**vars(error)}


def test_error_of_an_unknown_class_is_a_failure_of_the_work() -> None:
    """A worker cannot choose the class of an exception, nor an unknown code of a known one."""
    forged = msgspec.msgpack.encode((None, ("SystemExit", "text", None, None, False, None, None)))
    coded = msgspec.msgpack.encode((None, ("ModelError", "text", None, "x", False, None, None)))

    with pytest.raises(WorkError, match="text"):
        messages.decode(forged, int)
    with pytest.raises(ModelError, match=r"text \[bad-model\]"):
        messages.decode(coded, int)


def test_worker_that_cannot_start_costs_each_call_once(tmp_path: Path) -> None:
    """The calls are lost, one after the other, and none waits for ever."""
    broken = Interpreter("/bin/false", {"tuner": str(tmp_path)})
    with Pool(WorkerSettings(1, tmp_path / "worker.log", interpreter=broken)) as pool:
        calls = [pool.submit(HELPERS, "add", 1, 2) for _ in range(2)]
        for call in calls:
            with pytest.raises(WorkerLost, match="exited with status 1"):
                call.result()


def test_output_of_workers_goes_to_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No output of a worker reaches stdout or stderr of the coordinator."""
    log = tmp_path / "logs" / "worker.log"
    with Pool(WorkerSettings(1, log)) as pool:
        pool.call(HELPERS, "chatter", "here")

    assert capfd.readouterr() == ("", "")
    written = log.read_text()
    for source in ("python", "error", "descriptor", "child"):
        assert f"{source} here" in written


def test_close_ends_workers_in_the_middle_of_a_call(tmp_path: Path) -> None:
    """A pool that is closed leaves no process, busy or idle."""
    with Pool(WorkerSettings(2, tmp_path / "worker.log")) as pool:
        pids = {pool.call(HELPERS, "whoami") for _ in range(8)}
        pool.submit(HELPERS, "hang", 60.0)
        pool.submit(HELPERS, "whoami")

    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    """A kill -9 of the coordinator leaves no orphan, busy or idle."""
    program = (
        "import sys, pathlib, time\n"
        "from tuner.workers.pool import Pool, WorkerSettings\n"
        "if __name__ == '__main__':\n"
        "    pool = Pool(WorkerSettings(2, pathlib.Path(sys.argv[1]) / 'worker.log'))\n"
        f"    pool.submit('{HELPERS}', 'hang')\n"
        f"    print(pool.call('{HELPERS}', 'whoami'), flush=True)\n"
        "    time.sleep(600)\n"
    )
    script = tmp_path / "coordinator.py"
    script.write_text(program)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    process.stdout.close()

    assert len(workers) >= 2
    wait_for(lambda: not any(worker.is_running() for worker in workers))


def test_pool_that_is_not_closed_lets_its_process_end(tmp_path: Path) -> None:
    """A program that forgets its pool ends, and its workers with it."""
    program = (
        "import pathlib, sys\n"
        "from tuner.workers.pool import Pool, WorkerSettings\n"
        "pool = Pool(WorkerSettings(1, pathlib.Path(sys.argv[1])))\n"
        f"print(pool.call('{HELPERS}', 'whoami'))\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "worker.log")],
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    # It notices the end of the program, and nothing waits for that.
    wait_for(lambda: not psutil.pid_exists(int(ended.stdout)))


def test_call_that_needs_too_much_memory_fails_alone(tmp_path: Path) -> None:
    """The call raises OutOfMemory; its process stays within the limit and serves the next call."""
    settings = WorkerSettings(1, tmp_path / "worker.log", max_bytes=512 << 20)
    with Pool(settings) as pool:
        with pytest.raises(OutOfMemory, match="allocate needs more memory than it may have"):
            pool.call(HELPERS, "allocate", 1 << 30)

        assert pool.call(HELPERS, "allocate", 1 << 20) == 1 << 20


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_process_keeps_to_its_share_of_the_cores(tmp_path: Path) -> None:
    """It cannot leave its cores, and knows how many the machine has."""
    settings = Settings("", tmp_path, "tests.engines.toy", 1)
    n_cores = len(os.sched_getaffinity(0))
    with fresh_worker(settings, share=0.5) as pool:
        n_threads = pool.call(HELPERS, "environ", "TVM_NUM_THREADS")
        n_machine = pool.call(HELPERS, "environ", MACHINE_CORES)
        (process_id,) = pool.process_ids
        cores = psutil.Process(process_id).cpu_affinity()

    assert len(cores or ()) == int(n_threads) == n_cores // 2
    assert int(n_machine) == n_cores
