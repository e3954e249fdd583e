"""Finals: the best candidates of each workload race inside the graph of a whole network.

A kernel that is the fastest alone may not be it between its neighbours, whose caches and blocks it
shares. The workloads of a network decide one after the other, the most expensive first: each of its
finalists takes the place of all of its calls, the others being the best so far.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.errors import WorkError
from tuner.packs.runner.compilers import Contents
from tuner.packs.runner.driver import CudaError, Driver
from tuner.packs.runner.network import Network, difference

# Finalists of a workload, and how much slower than the fastest they may be alone.
_MAX_FINALISTS, _MAX_SLOWER = 4, 1.15
# Turns of the graphs of a race and of the last comparison, and launches of a graph in a turn.
_N_TURNS, _N_LAST_TURNS, _N_LAUNCHES = 20, 40, 2
#: Gain below which a network keeps what it has, relative to its time.
MIN_GAIN = 0.001
# Launches after which the outputs must be the same bytes.
_N_REPEATS = 50
# Least gain of kernels beside each other, as of libraries.
_BRANCH_GAIN = 0.02

Row = Mapping[str, Any]
Samples = dict[str, list[float]]
Times = Mapping[tuple[str, str], float]


def run_finals(
    contents: Contents,
    driver: Driver,
    rows: Sequence[Row],
    times: Times,
    write: Callable[[Row], None],
    until: float,
) -> None:
    """Run the finals that have no result yet.

    Args:
        contents: Candidates and the pack.
        driver: The device.
        rows: Rows that the file of results has.
        times: Seconds of each candidate that is right, by workload and name.
        until: Time at which no other race starts, seconds since the epoch.

    Raises:
        CudaError: If the device fails.
    """
    times = {key: secs for key, secs in times.items() if contents.has(*key)}
    ended = [row for row in rows if "network" in row and "started" not in row]
    done = {row["network"] for row in ended if "workload" not in row}
    waiting = [network for network in contents.pack.networks if network["name"] not in done]
    for number, network in enumerate(waiting):
        now = time.time()
        if now >= until:
            return
        named = {"network": network["name"]}
        write({**named, "started": True})
        try:
            on_device = Network(driver, contents, network)
        except (CudaError, TypeError, WorkError) as error:
            write({**named, "problem": str(error)})
            driver.wait()
            continue
        known = [row for row in ended if row["network"] == network["name"]]
        final = _Final(network, on_device, times, write)
        final.run(known, now + (until - now) / (len(waiting) - number))
        on_device.close()


class _Final:
    """The races of a network."""

    def __init__(
        self,
        network: Mapping[str, Any],
        on_device: Network,
        times: Times,
        write: Callable[[Row], None],
    ) -> None:
        self._network, self._on_device, self._write = network, on_device, write
        self._named = {"network": network["name"]}
        self._times: dict[str, dict[str, float]] = {name: {} for name in network["firsts"]}
        for (workload, name), secs in times.items():
            if workload in self._times:
                self._times[workload][name] = secs
        called = [name for name, _ in network["calls"]]
        self._calls = {name: called.count(name) for name in self._times}
        self.choice = {
            name: min(alone, key=lambda each, alone=alone: alone[each])  # type: ignore[misc]
            if alone
            else network["firsts"][name]
            for name, alone in self._times.items()
        }

    def run(self, known: Sequence[Row], until: float) -> None:
        """Run the races that are not among known rows, and compare what they choose."""
        fastest = dict(self.choice)
        firsts = self._network["firsts"].items()
        first = {**fastest, **{each: name for each, name in firsts if name in self._times[each]}}
        ended = {row["workload"]: row for row in known}
        self._choose_order()
        for workload, row in ended.items():
            if row.get("chosen") in self._times[workload]:
                self.choice[workload] = row["chosen"]
        for workload in sorted(self._times, key=self._cost, reverse=True):
            finalists = self._finalists(workload)
            if workload in ended or len(finalists) < 2:
                continue
            if time.time() >= until:
                break
            self._write({**self._named, "workload": workload, "started": True})
            self._race(workload, finalists)
        self._write({**self._named, "started": True})
        self._compare({"before": first, "fastest": fastest, "after": self.choice})

    def _choose_order(self) -> None:
        """Let kernels run beside each other if that is faster, as libraries do."""
        if not self._network["after"]:
            return
        shortest = {}
        for has_branches in (False, True):
            self._on_device.has_branches = has_branches
            try:
                (samples,) = self._sample({"": self.choice}, _N_TURNS).values()
            except CudaError as error:
                if not has_branches:
                    self._write({**self._named, "problem": str(error)})
                    raise
                break  # an old driver does not know how to capture branches
            shortest[has_branches] = min(samples)
        best = shortest.get(True, math.inf) < (1.0 - _BRANCH_GAIN) * shortest[False]
        self._on_device.has_branches = best

    def _cost(self, workload: str) -> float:
        """Return the seconds that a workload takes in the network."""
        return self._calls[workload] * min(self._times[workload].values(), default=0.0)

    def _finalists(self, workload: str) -> list[str]:
        """Return the candidates that race, the one that the network has first."""
        alone = self._times[workload]
        limit = _MAX_SLOWER * min(alone.values(), default=0.0)
        near = sorted(
            (name for name in alone if alone[name] <= limit), key=lambda each: alone[each]
        )
        own = self.choice[workload]
        return [own, *(name for name in near if name != own)][:_MAX_FINALISTS]

    def _race(self, workload: str, finalists: Sequence[str]) -> None:
        choices = {name: {**self.choice, workload: name} for name in finalists}
        try:
            samples = self._sample(choices, _N_TURNS)
        except CudaError as error:
            self._write({**self._named, "workload": workload, "problem": str(error)})
            raise
        median = {name: statistics.median(secs) for name, secs in samples.items()}
        own, winner = finalists[0], min(finalists, key=lambda name: median[name])
        if median[winner] > (1.0 - MIN_GAIN) * median[own]:
            winner = own
        self.choice[workload] = winner
        calls = self._calls[workload]
        row = {"workload": workload, "calls": calls, "race": samples, "chosen": winner}
        self._write({**self._named, **row})

    def _sample(self, choices: Mapping[str, Mapping[str, str]], n_turns: int) -> Samples:
        """Time the graphs of choices in turns; return the seconds of each by name."""
        graphs = {name: self._on_device.graph(choice) for name, choice in choices.items()}
        for graph in graphs.values():
            graph.run(_N_LAUNCHES)
        samples: Samples = {name: [] for name in graphs}
        for _ in range(n_turns):
            for name, graph in graphs.items():
                samples[name].append(graph.run(_N_LAUNCHES))
        for graph in graphs.values():
            graph.close()
        return samples

    def _compare(self, choices: Mapping[str, Mapping[str, str]]) -> None:
        """Time the network before and after, and compare its outputs."""
        try:
            samples = self._sample(choices, _N_LAST_TURNS)
            outputs = []
            for choice in (choices["before"], choices["after"]):
                graph = self._on_device.graph(choice)
                graph.run()
                outputs.append(self._on_device.outputs())
                graph.run(_N_REPEATS)
                again = self._on_device.outputs()
                graph.close()
            known = {
                workload: self._times[workload][name]
                for workload, name in self.choice.items()
                if name in self._times[workload]
            }
            estimate = self._on_device.secs_alone(self.choice, known)
        except CudaError as error:
            self._write({**self._named, "problem": str(error)})
            raise
        stable = all((one == other).all() for one, other in zip(outputs[-1], again, strict=True))
        types = [dtype for _, dtype in self._network["outputs"]]
        self._write(
            {
                **self._named,
                **samples,
                "estimate": estimate,
                "has_branches": self._on_device.has_branches,
                "n_kernels": self._on_device.n_kernels(self.choice),
                "is_stable": bool(stable),
                "difference": difference(types, outputs[1], outputs[0]),
                "choice": self.choice,
            }
        )
