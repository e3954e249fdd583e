"""The multiprocessing context that starts worker processes, in any Python environment."""

import io
import os
import subprocess
from contextlib import suppress
from multiprocessing import popen_spawn_posix, reduction, resource_tracker, spawn, util
from multiprocessing.context import SpawnContext, SpawnProcess, set_spawning_popen
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.engines.environments import Interpreter
from tuner.workers.environment import scrubbed

# Workers unpickle a class of this module, in environments that need not have psutil.
if TYPE_CHECKING:
    import psutil

# Sends the output of a worker to its log from the first instruction on: one that starts while its
# pool is closed finds the pool's semaphores removed, and prints a traceback.
_REDIRECT = """\
import os; log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644); \
os.dup2(log, 1); os.dup2(log, 2); os.close(log)
"""

# Lets another environment import the tuner's packages, and nothing else that lies beside them.
_BOOT = """\
import sys
from importlib.machinery import PathFinder

class TunerFinder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        folder = None if path else {folders!r}.get(name)
        return folder and PathFinder.find_spec(name, [folder])

sys.meta_path.append(TunerFinder)
from multiprocessing.spawn import spawn_main
spawn_main({arguments})
"""


class WorkerContext(SpawnContext):
    """Starts workers for a pool, and can kill them all.

    Args:
        interpreter: Python that runs them; None for that of this process.
        log: File that their output is appended to; None for the output of this process.
    """

    def __init__(self, interpreter: Interpreter | None = None, log: Path | None = None) -> None:
        super().__init__()
        self._interpreter = interpreter
        self._log = log
        self._workers: list[SpawnProcess] = []
        self._paused: list[psutil.Process] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802
        """Make a worker; the name and the case are Python's."""
        worker = _WorkerProcess(self._interpreter, self._log, *args, **kwargs)
        self._workers = [other for other in self._workers if not _has_ended(other)] + [worker]
        return worker

    def kill_all(self) -> None:
        """Kill every worker, those that still start among them."""
        for worker in self._workers:
            if worker.pid is not None and not _has_ended(worker):
                worker.kill()

    def pause_all(self) -> None:
        """Stop every worker, and the processes that it started, until :meth:`resume_all`."""
        import psutil

        for worker in self._workers:
            if worker.pid is not None and not _has_ended(worker):
                with suppress(psutil.Error):
                    self._paused += _stop_tree(psutil.Process(worker.pid))

    def resume_all(self) -> None:
        """Continue the processes that were stopped, though their workers may have died."""
        import psutil

        paused, self._paused = self._paused, []
        for process in paused:
            with suppress(psutil.Error):
                process.resume()


class _WorkerProcess(SpawnProcess):
    """A spawned process that leaves the caller's main module alone."""

    def __init__(
        self, interpreter: Interpreter | None, log: Path | None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.interpreter = interpreter
        self.log = log

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802  the name is Python's
        return _WorkerStart(process_obj)


class _WorkerStart(popen_spawn_posix.Popen):
    """Start of a worker like that of any spawned process, but for its interpreter and main module.

    ``multiprocessing`` starts all processes by one interpreter, which is a global of its module
    ``spawn``. This class chooses one for each process and leaves that module as it is.
    """

    _fds: list[int]

    def _launch(self, process_obj: _WorkerProcess) -> None:
        tracker: Any = resource_tracker.getfd()
        data = self._pickled(process_obj)
        # Each side reads from a pipe that ends with the process on the other side.
        parent_reads, child_writes = os.pipe()
        child_reads, parent_writes = os.pipe()
        self.finalizer = util.Finalize(self, _close, (parent_reads, parent_writes))
        self.sentinel = parent_reads
        program, *arguments = _command(process_obj, tracker, child_reads)
        try:
            passed = [*self._fds, tracker, child_reads, child_writes]
            self.pid = _spawn([program, *arguments], passed)
        finally:
            _close(child_reads, child_writes)
        with open(parent_writes, "wb", closefd=False) as stream:
            stream.write(data)

    def _pickled(self, process_obj: _WorkerProcess) -> memoryview:
        """Serialise what the child reads first; its file descriptors are noted to be passed on."""
        data = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(_preparation(process_obj), data)
            reduction.dump(process_obj, data)
        finally:
            set_spawning_popen(None)
        return data.getbuffer()


def _spawn(command: list[str], passed: list[int]) -> int:
    """Start a process with a scrubbed environment, and return its id."""
    process = subprocess.Popen(command, pass_fds=passed, env=scrubbed(os.environ))
    # The caller waits for the process by its id.
    process.returncode = 0
    return process.pid


def _preparation(worker: _WorkerProcess) -> dict[str, Any]:
    """Return how the child sets itself up; it does not run the caller's script again.

    Python has a spawned process import the main module of its parent, for functions defined
    there. Worker functions never are, and the import would fail in a notebook or a script from
    stdin and would cost every worker the imports of a command line it does not use.
    """
    data = spawn.get_preparation_data(worker.name)
    data.pop("init_main_from_name", None)
    data.pop("init_main_from_path", None)
    if worker.interpreter is not None:
        data.pop("sys_path", None)
    return data


def _command(worker: _WorkerProcess, tracker: int, pipe: int) -> list[str]:
    """Return the command line of a child.

    A Python of another environment runs isolated: PYTHONPATH may name packages of this one.
    """
    interpreter = worker.interpreter
    redirect = "" if worker.log is None else _REDIRECT.format(log=str(worker.log))
    if interpreter is None:
        command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=pipe)
        *options, program, mark = [os.fsdecode(part) for part in command]
        return [*options, redirect + program, mark]
    arguments = f"tracker_fd={tracker}, pipe_handle={pipe}"
    program = _BOOT.format(folders=dict(interpreter.folders), arguments=arguments)
    return [interpreter.path, "-I", "-c", redirect + program, "--multiprocessing-fork"]


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _stop_tree(process: "psutil.Process") -> list["psutil.Process"]:
    """Stop a process before its children: once it is stopped, it starts no more of them."""
    import psutil

    process.suspend()
    stopped = [process]
    for child in process.children():
        with suppress(psutil.Error):
            stopped += _stop_tree(child)
    return stopped


def _has_ended(worker: SpawnProcess) -> bool:
    try:
        return worker.exitcode is not None
    except (ValueError, AssertionError):  # closed, or not started yet
        return False
