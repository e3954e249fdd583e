"""Simulated tasks: a workload whose IR says how its latency falls, and what searching it finds.

The candidates of a task's n-th round scatter above the latency that a recorded task had after
its n-th round, so that the best of them comes close to it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.replay import RecordedTask
from tuner.engines.base import Candidate, SearchRequest

ENGINE = "benchmarks.simulation"
# As long as those of real tasks and trials are on average, of eight jobs with TVM 0.27.
_IR_BYTES = 3_000
_TRACE_BYTES = 1_770
_FEATURES = bytes(480)
# How far candidates lie above the best that their round can find, on average.
_SCATTER = 0.5
# A trace begins with its latency and the cost of its trial, in so many characters each.
_WIDTH = 20
# What building without a trace yields: a reference, or the kernel that devices are compared by.
UNSCHEDULED = f"{1.0:{_WIDTH}.12e}{1.0:{_WIDTH}.6f}"


@dataclass(frozen=True)
class Kernel:
    """A simulated task.

    Attributes:
        curve: Best latency after each round, seconds; the last one stays.
        cost: What its trials take of a device, as a multiple of the average task's.
    """

    curve: tuple[float, ...]
    cost: float

    @classmethod
    def of(cls, task: RecordedTask, factor: float, mean_secs: float) -> "Kernel":
        """Take over a recorded task.

        Args:
            task: Something of it ran.
            factor: Of its latencies.
            mean_secs: What a trial takes on average over all recorded tasks, seconds.
        """
        curve = tuple(factor * secs for secs in task.best_secs if secs < float("inf"))
        return cls(curve, secs_per_trial(task) / mean_secs)

    def as_ir(self, number: int) -> bytes:
        """Write it as the IR of a workload; ``number`` makes it another one than its like."""
        text = json.dumps({"number": number, "curve": self.curve, "cost": round(self.cost, 3)})
        return text.encode().ljust(_IR_BYTES)

    def reachable_secs(self, n_rounds: int) -> float:
        """Return the latency that a round comes close to, after so many before it."""
        return self.curve[min(n_rounds, len(self.curve) - 1)]


def usable(tasks: Sequence[RecordedTask]) -> list[RecordedTask]:
    """Return the tasks of which something ran, and whose trials took time."""
    return [t for t in tasks if min(t.best_secs, default=np.inf) < np.inf and sum(t.secs) > 0.0]


def secs_per_trial(task: RecordedTask) -> float:
    """Return what a recorded trial took, search and build included, seconds."""
    return sum(task.secs) / max(sum(task.n_trials), 1)


def propose(request: SearchRequest, trials_per_round: int) -> list[Candidate]:
    """Search a simulated task: distinct candidates, a function of the request alone."""
    kernel, n_measured = read(request.ir), len(request.measured)
    reachable = kernel.reachable_secs(n_measured // trials_per_round)
    draws = np.random.default_rng(request.seed).exponential(_SCATTER, request.n_candidates)
    found = []
    for number, draw in enumerate(draws.tolist()):
        latency, name = reachable * (1.0 + draw), f"{n_measured}.{request.seed}.{number}"
        trace = f'"{latency:{_WIDTH}.12e}{kernel.cost:{_WIDTH}.6f}{name}"'.ljust(_TRACE_BYTES)
        found.append(Candidate(trace, name, _FEATURES, -latency))
    return found


def read(ir: bytes) -> Kernel:
    """Read what :meth:`Kernel.as_ir` wrote."""
    found = json.loads(ir)
    return Kernel(tuple(found["curve"]), found["cost"])


def artifact_of(trace: str) -> str:
    """Return what a simulated build yields: what running it needs; of an empty trace, too."""
    return trace[1 : 2 * _WIDTH + 1] or UNSCHEDULED


def run(artifact: str) -> tuple[float, float]:
    """Return the latency of an artifact, seconds, and what running it costs; see Kernel."""
    return float(artifact[:_WIDTH]), float(artifact[_WIDTH:])
