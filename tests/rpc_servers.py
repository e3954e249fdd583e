"""TVM's RPC tracker and servers on loopback, in processes of their own."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Self

from tests.services import free_port
from tests.waiting import wait_for
from tuner.devices.runners.addresses import RpcAddress
from tuner.devices.runners.tracker import Tracker
from tuner.errors import DeviceLost
from tuner.workers.processes.python_command import run_module

_START_SECS = 180.0


class RpcServers:
    """Tracker and servers under one key; a folder keeps their output.

    Args:
        folder: Folder for logs.
        key: Key of the servers.
    """

    def __init__(self, folder: Path, key: str = "nap") -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.address = RpcAddress("127.0.0.1", free_port(), key)
        self.start_tracker()

    @property
    def setting(self) -> str:
        """Value of the setting ``rpc`` for these servers."""
        return f"{self.address.tracker}/{self.address.key}"

    def start_tracker(self) -> None:
        """Start the tracker on its previous port."""
        port = self.address.port
        ports = ["--port", str(port), "--port-end", str(port + 1)]
        self._start("tracker", "tvm.exec.rpc_tracker", *ports)
        wait_for(lambda: self.n_servers() >= 0, _START_SECS)

    def start_server(self, name: str, *options: str) -> None:
        """Start a server, which registers itself."""
        port = free_port()
        ports = ["--port", str(port), "--port-end", str(port + 1)]
        where = ["--tracker", self.address.tracker, "--key", self.address.key]
        self._start(name, "tvm.exec.rpc_server", *ports, *where, *options)

    def wait_for(self, n_servers: int) -> None:
        """Wait until ``n_servers`` servers are registered."""
        wait_for(lambda: self.n_servers() == n_servers, _START_SECS)

    def n_servers(self) -> int:
        """Return the number of registered servers; -1 without a tracker."""
        tracker = Tracker(self.address)
        try:
            return len(tracker.servers())
        except DeviceLost:
            return -1
        finally:
            tracker.close()

    def kill(self, name: str) -> None:
        """Kill the tracker or a server with all its processes."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the tracker and all servers."""
        for name in list(self._running):
            self.kill(name)

    def _start(self, name: str, module: str, *options: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                run_module(module, "--host", "127.0.0.1", *options),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
