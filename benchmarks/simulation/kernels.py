"""Simulated tasks: workloads whose IR holds their latency curve, and the search on them.

The candidates of a task's n-th round scatter above the latency of a recorded task after its n-th
round, so that the best of them comes close to it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.replay import RecordedTask
from tuner.engines.base import Candidate, SearchRequest

ENGINE = "benchmarks.simulation"
# Average lengths for real tasks and trials, of eight jobs with TVM 0.27.
_IR_BYTES = 3_000
_TRACE_BYTES = 1_770
_FEATURES = bytes(480)
# Average distance of candidates above the best latency of their round.
_SCATTER = 0.5
# A trace begins with its latency and the cost of its trial, each with this many characters.
_WIDTH = 20
# Artifact of a build without a trace: a reference, or the calibration kernel.
UNSCHEDULED = f"{1.0:{_WIDTH}.12e}{1.0:{_WIDTH}.6f}"


@dataclass(frozen=True)
class Kernel:
    """Simulated task.

    Attributes:
        curve: Best latency after each round, seconds; the last one stays.
        cost: Device time of its trials, as a multiple of the average task's.
    """

    curve: tuple[float, ...]
    cost: float

    @classmethod
    def of(cls, task: RecordedTask, factor: float, mean_secs: float) -> "Kernel":
        """Make a simulated task from a recorded one.

        Args:
            task: Recorded task with at least one latency.
            factor: Factor on its latencies.
            mean_secs: Average seconds of a trial over all recorded tasks.
        """
        curve = tuple(factor * secs for secs in task.best_secs if secs < float("inf"))
        return cls(curve, secs_per_trial(task) / mean_secs)

    def as_ir(self, number: int) -> bytes:
        """Return the IR of a workload; ``number`` distinguishes equal tasks."""
        text = json.dumps({"number": number, "curve": self.curve, "cost": round(self.cost, 3)})
        return text.encode().ljust(_IR_BYTES)

    def reachable_secs(self, n_rounds: int) -> float:
        """Return the latency that the round after ``n_rounds`` others comes close to."""
        return self.curve[min(n_rounds, len(self.curve) - 1)]


def usable(tasks: Sequence[RecordedTask]) -> list[RecordedTask]:
    """Return the tasks with a latency and with trials that took time."""
    return [t for t in tasks if min(t.best_secs, default=np.inf) < np.inf and sum(t.secs) > 0.0]


def secs_per_trial(task: RecordedTask) -> float:
    """Return the seconds of a recorded trial, including search and build."""
    return sum(task.secs) / max(sum(task.n_trials), 1)


def propose(request: SearchRequest, trials_per_round: int) -> list[Candidate]:
    """Search a simulated task: distinct candidates, a function of the request alone."""
    kernel, n_measured = read(request.ir), len(request.measured)
    reachable = kernel.reachable_secs(n_measured // trials_per_round)
    draws = np.random.default_rng(request.seed).exponential(_SCATTER, request.n_candidates)
    candidates = []
    for number, draw in enumerate(draws.tolist()):
        latency, name = reachable * (1.0 + draw), f"{n_measured}.{request.seed}.{number}"
        trace = f'"{latency:{_WIDTH}.12e}{kernel.cost:{_WIDTH}.6f}{name}"'.ljust(_TRACE_BYTES)
        candidates.append(Candidate(trace, name, _FEATURES, -latency))
    return candidates


def read(ir: bytes) -> Kernel:
    """Read what :meth:`Kernel.as_ir` wrote."""
    fields = json.loads(ir)
    return Kernel(tuple(fields["curve"]), fields["cost"])


def artifact_of(trace: str) -> str:
    """Return the artifact of a simulated build, also for an empty trace."""
    return trace[1 : 2 * _WIDTH + 1] or UNSCHEDULED


def run(artifact: str) -> tuple[float, float]:
    """Return the latency of an artifact in seconds, and its cost; see :class:`Kernel`."""
    return float(artifact[:_WIDTH]), float(artifact[_WIDTH:])
