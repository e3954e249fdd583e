"""Processes of the fork server, as tests see them."""

import os
import signal
import struct
import subprocess
import sys

import pytest

from tests.forked import Forked


def test_an_ended_process_and_an_ended_server_are_told() -> None:
    """A signal to a process whose status is not yet known is none; a closed pipe is named."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    status, server = os.pipe()
    os.write(server, struct.pack("i", ended.pid))
    forked = Forked(status, -1, -1)
    forked.send_signal(signal.SIGTERM)
    os.close(server)

    with pytest.raises(RuntimeError, match="fork server has ended"):
        forked.wait()
    os.close(status)
