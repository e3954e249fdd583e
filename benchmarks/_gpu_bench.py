"""Context of a step of the GPU report: its time, folder, commands and facts."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _gpu_records as job_records
from benchmarks._gpu_commands import StepError, read_busy, run_tuner
from benchmarks._gpu_networks import FULL, Sizes
from benchmarks._gpu_race import Runs
from benchmarks._gpu_sharing import Timer
from records.models import now
from tuner.engines.base import NetworkRun
from tuner.settings import Settings, read_settings
from tuner.workers.pool import Pool

# Seconds of a tuning command without trials: start of processes, and the final. Minimum share of
# the time that trials get in any case.
_AROUND_SECS = 40.0
_MIN_SHARE = 0.4
_MIN_TIMEOUT_SECS = 5.0


@dataclass
class Bench:
    """Running step.

    Attributes:
        name: Name of the step.
        target: Target as a user writes it.
        out: Folder of the report.
        timer: Time of the step.
        save: Function that writes the report with all results so far.
        sizes: Sizes of the networks.
        facts: Results for the report, as JSON.
        commands: Executed commands of the tuner.
    """

    name: str
    target: str
    out: Path
    timer: Timer
    save: Callable[[], None]
    sizes: Sizes = FULL
    facts: dict[str, Any] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        """Device of torch, ``cpu`` or ``cuda``."""
        return "cpu" if "llvm" in self.target else "cuda"

    @property
    def data_dir(self) -> Path:
        """Data directory of this step; a second run of the step continues from it."""
        return (self.out / "data" / self.name).absolute()

    @property
    def settings(self) -> Settings:
        """Log file of this step."""
        place = {"data_dir": self.data_dir, "database": f"sqlite:///{self.data_dir}/tuner.db"}
        return read_settings(place)

    @property
    def n_threads(self) -> int:
        """Number of usable cores."""
        return len(os.sched_getaffinity(0))

    @property
    def patience_secs(self) -> float:
        """Limit for a few runs of a network, so that one runtime cannot use all the time."""
        return min(self.left_secs, self.timer.secs / 4)

    @property
    def left_secs(self) -> float:
        """Time left, as a time-out of a worker; at least a few seconds."""
        return max(self.timer.left, _MIN_TIMEOUT_SECS)

    def note(self, **facts: Any) -> None:
        """Add facts to the report and write it."""
        self.facts.update(facts)
        self.save()

    def tuner(self, *words: str, secs: float) -> dict[str, Any]:
        """Run a command of the tuner with this step's data; see :func:`run_tuner`."""
        place = ("--data-dir", str(self.data_dir), "--database", self.settings.database)
        self.commands.append(shlex.join(["tuner", *words]))
        return run_tuner([*words, *place], secs, self._log)

    def tune(self, model: str, secs: float, *words: str) -> dict[str, Any]:
        """Tune a network and return the results.

        Args:
            model: Model as a user writes it.
            secs: Limit of the command, which gets a budget to end in time.
            words: Further arguments; with ``--trials`` the command gets no other limit.

        Raises:
            StepError: If it failed.
        """
        begun, timer = now(), Timer(secs)
        limit: tuple[str, ...] = ()
        if "--trials" not in words:
            budget_secs = max(secs - _AROUND_SECS, _MIN_SHARE * secs)
            limit = ("--seconds", f"{self._spent_secs() + budget_secs:.0f}")
        printed = self.tuner("tune", model, "--target", self.target, *limit, *words, secs=secs)
        if printed.get("error"):
            raise StepError(str(printed["error"]))
        return {
            **job_records.read_job(self.data_dir, begun),
            "command_secs": timer.spent,
            "was_stopped": not printed,
            "n_tasks": len(printed["tasks"]) if printed else None,
            "estimated_secs": printed.get("total_latency_secs"),
            "busy": read_busy(self._log),
        }

    def build(self, model: str, name: str) -> dict[str, Any]:
        """Build a network into a named library, and return its coverage.

        Raises:
            StepError: If it failed, or took too long.
        """
        words = ("build", model, "--target", self.target, "--out", str(self.library(name)))
        printed = self.tuner(*words, secs=self.timer.left)
        if not printed:
            raise StepError("building took longer than the step's share of the time")
        return {key: printed[key] for key in ("secs", "tuned", "fallbacks", "estimated_secs")}

    def library(self, name: str) -> Path:
        """Return the folder of a library."""
        return self.data_dir / f"{name}.lib"

    def scratch(self, name: str) -> Path:
        """Return the path of a temporary file of the step."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        return self.data_dir / name

    def keep_inputs(self, inputs: dict[str, np.ndarray[Any, Any]]) -> Path:
        """Write the inputs for all runtimes."""
        path = self.scratch("inputs.npz")
        np.savez(path, **inputs)  # type: ignore[arg-type]
        return path

    def ours(self, pool: Pool, name: str, inputs: Path) -> Runs:
        """Return a runner of a library in a worker."""

        def run(n_runs: int, outputs: str) -> tuple[float, ...]:
            request = NetworkRun(str(self.library(name)), str(inputs), outputs, n_runs)
            secs: tuple[float, ...] = pool.call(
                self.settings.engine, "run_network", request, timeout_secs=self.patience_secs
            )
            return secs

        return run

    @property
    def _log(self) -> Path:
        return self.out / "logs" / f"{self.name}.log"

    def _spent_secs(self) -> float:
        """Return the seconds that the step's job has spent; they count towards its limit."""
        if not (self.data_dir / "tuner.db").is_file():
            return 0.0
        results = job_records.read_job(self.data_dir, now())
        return float(results.get("spent_secs", 0.0))
