"""A whole network on the device: its memory, and its launches as one graph."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tuner.engines.relax.triton.programs import has_counters
from tuner.packs.runner.compilers import Contents
from tuner.packs.runner.driver import Driver, Graph, Launches

# Numbers that are drawn for a weight; larger ones repeat them.
_N_DRAWN = 1 << 18
# Launches of a kernel that is timed alone.
_N_ALONE = 20

Array = np.ndarray[Any, Any]
#: Name of the candidate of each workload.
Choice = Mapping[str, str]


class Network:
    """A network of a pack on the device.

    Args:
        driver: The device.
        contents: Candidates and the pack.
        network: Network of its index.

    Raises:
        CudaError: If the device has no room, or refuses a kernel.
        TypeError: If NumPy does not know the type of a weight.
    """

    def __init__(self, driver: Driver, contents: Contents, network: Mapping[str, Any]) -> None:
        self._driver, self._contents, self._network = driver, contents, network
        content = contents.pack.network_content(network)
        self._blocks: list[int] = []
        self._loaded: dict[tuple[str, str], Launches] = {}
        # Kernels beside each other share no workspace: its size and address by the call, the last
        # the largest, as graphs that were captured before may use the others.
        self._workspaces: dict[int, list[tuple[int, int]]] = {}
        #: True to let kernels run beside each other that need nothing of each other.
        self.has_branches = False
        try:
            for number, block in enumerate(network["blocks"]):
                self._blocks.append(driver.allocate(block["n_bytes"]))
                driver.fill(self._blocks[-1], block["n_bytes"], 0)
                if block["dtype"]:
                    driver.upload(self._blocks[-1], _values(block, number, content))
            for name, each in network["others"].items():
                self._loaded[name, ""] = Launches(driver, each, content)
        except BaseException:
            self.close()
            raise

    def graph(self, choice: Choice) -> Graph:
        """Return the graph of the network with a candidate for each workload."""
        calls = [
            (self._launches(name, choice), [self._blocks[at] for at in blocks])
            for name, blocks in self._network["calls"]
        ]
        after = self._after(choice) if self.has_branches else ()
        workspaces = [
            self._workspace(number, each.n_bytes) for number, (each, _) in enumerate(calls)
        ]

        # Kernels may be loaded by their first launch, which a capture does not allow.
        for (launches, addresses), workspace in zip(calls, workspaces, strict=True):
            launches.launch(addresses, workspace)
        self._driver.wait()

        def launch() -> None:
            ends: list[list[int]] = []
            for number, (launches, addresses) in enumerate(calls):
                if after:
                    self._wait_for(after[number], ends)
                launches.launch(addresses, workspaces[number])
                if after:
                    ends.append(self._driver.captured())
            if after:
                needed = {call for calls in after for call in calls}
                self._wait_for([call for call in range(len(ends)) if call not in needed], ends)

        return Graph(self._driver, launch)

    def _wait_for(self, calls: Sequence[int], ends: Sequence[Sequence[int]]) -> None:
        self._driver.wait_for(list(dict.fromkeys(node for call in calls for node in ends[call])))

    def _after(self, choice: Choice) -> list[list[int]]:
        """Return the calls that each call waits for: kernels with counters, for themselves too."""
        names = {**{name: each["name"] for name, each in self._network["others"].items()}, **choice}
        last: dict[str, int] = {}
        after: list[list[int]] = []
        for (name, _), calls in zip(self._network["calls"], self._network["after"], strict=True):
            own = [last[name]] if name in last and has_counters(names[name]) else []
            last[name] = len(after)
            after.append([*calls, *own])
        return after

    def n_kernels(self, choice: Choice) -> int:
        """Return the number of kernels that a graph launches."""
        return sum(self._launches(name, choice).n_kernels for name, _ in self._network["calls"])

    def secs_alone(self, choice: Choice, times: Mapping[str, float]) -> float:
        """Return the time of all calls, each alone; those without a time are measured.

        Args:
            choice: Candidates of the workloads.
            times: Seconds of the candidates, by workload.
        """
        total = 0.0
        for number, (name, blocks) in enumerate(self._network["calls"]):
            if name in times:
                total += times[name]
                continue
            launches = self._launches(name, choice)
            addresses = [self._blocks[at] for at in blocks]
            workspace = self._workspace(number, launches.n_bytes)
            total += min(launches.sample([addresses], workspace, _N_ALONE, 3))
        return total

    def outputs(self) -> list[Array]:
        """Return the outputs as bytes."""
        blocks = self._network["blocks"]
        return [
            self._driver.download(self._blocks[at], (blocks[at]["n_bytes"],), "uint8")
            for at, _ in self._network["outputs"]
        ]

    def close(self) -> None:
        """Free its memory and unload its kernels."""
        for launches in self._loaded.values():
            launches.close()
        for address in self._blocks:
            self._driver.free(address)
        for workspaces in self._workspaces.values():
            for _, address in workspaces:
                self._driver.free(address)

    def _launches(self, name: str, choice: Choice) -> Launches:
        key = (name, choice.get(name, ""))
        if key not in self._loaded:
            candidate, code = self._contents.candidate(*key)
            self._loaded[key] = Launches(self._driver, candidate, code)
        return self._loaded[key]

    def _workspace(self, number: int, n_bytes: int) -> int:
        """Return the address of a workspace of a call; calls in a chain share one."""
        own = self._workspaces.setdefault(number if self.has_branches else -1, [])
        if not own or own[-1][0] < n_bytes:
            own.append((n_bytes, self._driver.allocate(n_bytes)))
        return own[-1][1]


def difference(
    types: Sequence[str], outputs: Sequence[Array], others: Sequence[Array]
) -> float | None:
    """Return the largest distance of outputs relative to the others.

    Args:
        outputs: Outputs as bytes.
        others: Outputs to compare with, as bytes.

    Returns:
        The distance, 0 for equal bytes; None if a number is infinite or NaN.
    """
    worst = 0.0
    for dtype, one, other in zip(types, outputs, others, strict=True):
        if dtype not in ("float16", "float32", "float64") or (one == other).all():
            continue
        numbers, expected = (each.view(dtype).astype("float64") for each in (one, other))
        scale = float(np.linalg.norm(expected)) or 1.0
        distance = float(np.linalg.norm(numbers - expected)) / scale
        if not math.isfinite(distance):
            return None
        worst = max(worst, distance)
    return worst


def _values(block: Mapping[str, Any], number: int, content: bytes) -> Array:
    """Return what a block holds before the kernels run."""
    if "at" in block:
        return np.frombuffer(content, "uint8", block["size"], block["at"])
    dtype = block["dtype"]
    n = block["n_bytes"] // (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)
    random = np.random.default_rng(number)
    drawn = random.normal(block["mean"], block["spread"], min(n, _N_DRAWN)).astype("float32")
    if dtype == "bfloat16":  # the upper half of float32, also where NumPy does not know it
        drawn = (drawn.view("uint32") >> 16).astype("uint16")
    elif np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        drawn = drawn.round().clip(limits.min, limits.max).astype(dtype)
    else:
        drawn = drawn.astype(dtype)
    return np.resize(drawn, n)
