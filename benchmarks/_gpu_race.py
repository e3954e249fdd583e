"""Race of runtimes in turns on one device, each in a process of its own."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import numpy as np

from benchmarks._gpu_sharing import Timer
from tuner.errors import TunerError, summary
from tuner.workers.pool import CallTimeout

# Function that runs a network n times, writes its outputs if a file is given, and returns seconds.
Runs = Callable[[int, str], tuple[float, ...]]
# Errors of calls to workers.
FAILURES = (TunerError, CallTimeout, OSError)
# Length of a turn, as in `tuner bench`; the same time before it is not counted, because clocks of
# an idle GPU rise.
_TURN_SECS = 0.1
_MIN_RUNS, _MAX_RUNS = 3, 200
# Threads of a runtime on a CPU keep spinning after a run.
_REST_SECS = 0.3


@dataclass
class Race:
    """Runtimes that take turns.

    Attributes:
        runners: Runtimes by name.
        samples: Seconds by name; runtimes that were left out are missing.
        left_out: Reason for missing samples, by name.
        n_turns: Number of turns of each runtime.
    """

    runners: Mapping[str, Runs]
    samples: dict[str, list[float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    n_turns: int = 0

    def run(self, n_turns: int, timer: Timer) -> None:
        """Let all runtimes take turns, every other time in reverse; leave out those that fail.

        The first half of the runs of a turn is not counted. If time runs short, turns are skipped,
        but never the first.
        """
        n_runs = {name: _runs_a_turn(self._rested(name, _MIN_RUNS)) for name in self.runners}
        longest = 0.0
        while self.n_turns < n_turns and (self.n_turns == 0 or timer.left > longest):
            begun = timer.spent
            order = list(self.runners)
            for name in order if self.n_turns % 2 == 0 else reversed(order):
                taken = self._rested(name, 2 * n_runs[name])
                self.samples.setdefault(name, []).extend(taken[n_runs[name] :])
            longest = max(longest, timer.spent - begun)
            self.n_turns += 1
        self.samples = {n: s for n, s in self.samples.items() if n not in self.left_out}

    def take(self, name: str, n_runs: int, outputs: str = "") -> tuple[float, ...]:
        """Return samples of a runtime; none if it was left out, or fails and is left out now."""
        if name in self.left_out:
            return ()
        try:
            return self.runners[name](n_runs, outputs)
        except FAILURES as error:
            self.left_out[name] = explain(error)
            return ()

    def _rested(self, name: str, n_runs: int) -> tuple[float, ...]:
        if name not in self.left_out:
            time.sleep(_REST_SECS)
        return self.take(name, n_runs)


def _runs_a_turn(samples: Sequence[float]) -> int:
    if not samples:
        return 0
    return min(max(round(_TURN_SECS / median(samples)), _MIN_RUNS), _MAX_RUNS)


def explain(error: BaseException) -> str:
    """Return the reason of a failure in one line."""
    if isinstance(error, CallTimeout):
        return "it took longer than its share of the time"
    return summary(error)


def summarise(samples: Sequence[float]) -> dict[str, float]:
    """Return median and quartiles in seconds, and the number of samples."""
    low, middle, high = quantiles(samples, n=4, method="inclusive")
    return {"median_secs": middle, "low_secs": low, "high_secs": high, "n": len(samples)}


def relative_error(ours: Path, expected: Path) -> float:
    """Return the largest difference of the first outputs over the largest of the expected one.

    The result is not finite if an output is not.
    """
    with np.load(ours) as mine, np.load(expected) as other:
        value = mine[mine.files[0]].astype(np.float64)
        reference = other[other.files[0]].astype(np.float64)
    return float(np.abs(value - reference).max() / (np.abs(reference).max() or 1.0))
