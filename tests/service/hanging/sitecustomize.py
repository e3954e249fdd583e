"""Blocks the main thread of a process for ever on SIGUSR2, as a call into the kernel may."""

import os
import signal
import time
from pathlib import Path


def _hang(_number: int, _frame: object) -> None:
    Path(os.environ["HANG_FOLDER"], str(os.getpid())).touch()
    while True:
        time.sleep(3600.0)


signal.signal(signal.SIGUSR2, _hang)
