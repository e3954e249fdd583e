"""Processes that a supervisor restarts when they end, and that die with it."""

import ctypes
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tuner.workers.confinement.environment import without_current_folder

_PR_SET_PDEATHSIG = 1
_MAX_BACK_OFF_SECS = 30.0
# A process that ran longer counts as healthy, and its failure as the first.
_HEALTHY_SECS = 60.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Program:
    """Command of a child process.

    Attributes:
        name: Name for logs.
        command: Program and its arguments.
        nice: Amount by which the priority is lowered.
        oom_score_adj: Addition to the score by which Linux chooses a process to kill when memory
            runs out, from 0 to 1000.
    """

    name: str
    command: Sequence[str]
    nice: int = 0
    oom_score_adj: int = 0


class Child:
    """One program, started again when it ends, with a longer pause each time it ends soon."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._n_failures = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._next = 0.0

    def poll(self) -> int | None:
        """Start the program if it is due; returns its exit status if it has just ended."""
        if self._process is None:
            if time.monotonic() >= self._next:
                self._start()
            return None
        status = self._process.poll()
        if status is None:
            return None
        self._process = None
        ran = time.monotonic() - self._started
        self._n_failures = 1 if ran > _HEALTHY_SECS else self._n_failures + 1
        wait = min(2.0 ** (self._n_failures - 1), _MAX_BACK_OFF_SECS)
        self._next = time.monotonic() + wait
        _LOG.warning(
            "%s ended with status %d after %.0f s; it starts again in %.0f s",
            self.program.name,
            status,
            ran,
            wait,
        )
        return status

    def signal(self, number: int) -> None:
        """Send a signal to the program if it is running."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def has_ended(self) -> bool:
        """Return whether the program is not running."""
        return self._process is None or self._process.poll() is not None

    def _start(self) -> None:
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            self.program.command,
            stdin=subprocess.DEVNULL,
            env=without_current_folder(os.environ),
            # Its own session, because the supervisor alone decides what Ctrl-C means.
            start_new_session=True,
            preexec_fn=_prepare_child(os.getpid(), self.program),  # noqa: PLW1509  no threads here
        )
        _LOG.info("started %s", self.program.name, extra={"pid": self._process.pid})


def _prepare_child(parent: int, program: Program) -> Callable[[], None]:
    """Return the function that a child runs before it becomes its program."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        # Linux keeps this across exec, so that children never outlive the supervisor.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.nice(program.nice)
        if program.oom_score_adj:
            with suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text(str(program.oom_score_adj))

    return prepare
