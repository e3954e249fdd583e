"""Processes of pytest-xdist, forked from one that has collected the tests.

Collecting them takes twelve seconds, ten of which are imports, which forked processes share.
"""

import gc
import json
import os
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence

_SERVER = "import sys; from tests.forked_pytest import serve; serve(int(sys.argv[1]), sys.argv[2:])"


class ForkServer:
    """A process that collects the tests and forks processes that run them."""

    def __init__(self, paths: Sequence[str]) -> None:
        own, other = socket.socketpair()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The kernel chooses a name without a file.
        listening.bind("")
        listening.listen()
        self._name = bytes(listening.getsockname()).decode("latin-1")
        with other, listening:
            # Paths are relative to the current folder, which may have folders named like packages.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _SERVER, str(listening.fileno()), *paths],
                pass_fds=[listening.fileno()],
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._alive = own

    @property
    def command(self) -> str:
        """A command that does what ``python`` does with its arguments, in a forked process."""
        return shlex.join([sys.executable, "-IS", __file__, self._name[1:]])

    def close(self) -> None:
        """End the process; those that it forked go on."""
        self._alive.close()
        self._process.wait()


def serve(descriptor: int, paths: Sequence[str]) -> None:
    """Collect tests, then fork a process for each request, until standard input ends."""
    import pytest

    # Errors are reported by the processes that run the tests: they collect them, too.
    pytest.main(["--collect-only", "-q", "-p", "no:xdist", *paths])
    gc.freeze()
    # As when a process of pytest starts, see tests/conftest.py.
    gc.disable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    requests = socket.socket(fileno=descriptor)
    while requests in select.select([requests, sys.stdin], [], [])[0]:
        client, _ = requests.accept()
        # Any user of the machine can connect to a name without a file.
        peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", peer)[1] != os.getuid():
            client.close()
            continue
        message, streams, _, _ = socket.recv_fds(client, 2**16, 3)
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            *_, program = json.loads(message)
            sys.argv = ["-c"]
            exec(program, {"__name__": "__main__"})
            sys.stdout.flush()
            os._exit(0)
        for each in (*streams, client.detach()):
            os.close(each)


def _ask(name: str, arguments: Sequence[str]) -> None:
    """Have a process forked that has the streams of this one, and wait for its end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(b"\0" + name.encode("latin-1"))
        socket.send_fds(server, [json.dumps(arguments).encode()], [0, 1, 2])
        server.recv(1)


if __name__ == "__main__":
    _ask(sys.argv[1], sys.argv[2:])
