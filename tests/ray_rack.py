"""A Ray cluster of this machine, whose nodes are processes that tests add and kill.

Ray makes clusters for tests inside the process that asks; here it is a process of its own, so that
what is tested is a driver and no more.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import psutil

from tests.cli import ROOT
from tuner.workers import worker_process

STORE_BYTES = 80 << 20


class Rack:
    """A cluster; its head has builders only.

    Args:
        folder: Data directories of its nodes, by name.
        head_cpus: Builders of the head.
        environ: Environment variables of all nodes.
    """

    def __init__(
        self, folder: Path, head_cpus: int = 1, environ: dict[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._pids: dict[str, int] = {}
        with (folder / "rack.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "RAY_USAGE_STATS_ENABLED": "0",
                    **(environ or {}),
                },
            )
        self._pids["head"] = self._ask("add", num_cpus=head_cpus, node_name="head")
        self.address: str = self._ask("address")

    def add(
        self,
        name: str,
        devices: dict[str, int] | None = None,
        *,
        n_cpus: int = 1,
        environ: dict[str, str] | None = None,
    ) -> None:
        """Start a node with a number of devices of each resource."""
        places = {"TUNER_DATA_DIR": str(self._folder / name)}
        self._pids[name] = self._ask(
            "add",
            num_cpus=n_cpus,
            resources=devices or {},
            node_name=name,
            env_vars={**places, **(environ or {})},
        )

    def kill(self, name: str) -> None:
        """Kill a node: whatever runs on it, as a loss of power would."""
        processes = [self.raylet(name), *self.raylet(name).children(recursive=True)]
        for process in processes:
            process.kill()
        del self._pids[name]

    def raylet(self, name: str) -> psutil.Process:
        """The process of Ray itself on a node."""
        return psutil.Process(self._pids[name])

    def agents(self, name: str) -> list[psutil.Process]:
        """Our processes that Ray started on a node."""
        children = self.raylet(name).children(recursive=True)
        return [child for child in children if child.name().startswith("ray::Agent")]

    def workers(self, name: str) -> list[psutil.Process]:
        """The processes of our agents that do their work."""
        return [
            child
            for agent in self.agents(name)
            for child in agent.children(recursive=True)
            if child.name() == worker_process.NAME
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the cluster."""
        self._ask("close")
        self._process.communicate(timeout=60)

    def _ask(self, method: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([method, arguments]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _serve() -> None:
    """Run a cluster as the lines on stdin demand, until they end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray talks
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for line in sys.stdin:
            method, arguments = json.loads(line)
            answer: Any = None
            if method == "add":
                node = cluster.add_node(
                    object_store_memory=STORE_BYTES, include_dashboard=False, **arguments
                )
                answer = node.all_processes["raylet"][0].process.pid
            elif method == "address":
                answer = cluster.address
            else:
                cluster.shutdown()
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    _serve()
