"""The locks of this machine's CPU, which a service holds while it has jobs."""

import time
from contextlib import ExitStack

from tuner.devices.locks import cores_lock, device_lock
from tuner.errors import DeviceBusy
from tuner.executors.factory import has_remote_devices
from tuner.settings import Settings

# Jobs and builds that wait for the CPU try again sooner.
_PROBLEM_SECS = 2.0


class CpuHold:
    """Holds the CPU against other processes that measure on this machine, or does not.

    A worker with remote devices does not measure on it, and holds its data directory alone.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._locks = ExitStack()
        self._is_held = False
        self._problem, self._failed_at = "", -_PROBLEM_SECS

    @property
    def problem(self) -> str:
        """Reason why a job or a build waits for the CPU; empty if none does."""
        return self._problem if time.monotonic() < self._failed_at + _PROBLEM_SECS else ""

    def acquire(self) -> None:
        """Hold the CPU from now on.

        Raises:
            DeviceBusy: If another process of this machine holds it.
        """
        if self._is_held:
            return
        try:
            with ExitStack() as stack:
                stack.enter_context(device_lock(self._settings.data_dir))
                if not has_remote_devices(self._settings):
                    stack.enter_context(cores_lock())
                self._locks = stack.pop_all()
        except DeviceBusy as error:
            self._problem, self._failed_at = str(error), time.monotonic()
            raise
        self._is_held, self._problem = True, ""

    def try_acquire(self) -> bool:
        """Hold the CPU from now on; return False if another process of this machine holds it."""
        try:
            self.acquire()
        except DeviceBusy:
            return False
        return True

    def release(self) -> None:
        """Let others measure."""
        self._locks.close()
        self._is_held = False
