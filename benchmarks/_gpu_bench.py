"""What every step of the GPU report works with: its time, its folder, commands, and its facts."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _gpu_records as job_records
from benchmarks._gpu_commands import StepFailed, read_busy, run_tuner
from benchmarks._gpu_networks import FULL, Sizes
from benchmarks._gpu_race import Runs
from benchmarks._gpu_sharing import Timer
from records.models import now
from tuner.engines.base import NetworkRun
from tuner.settings import Settings, read_settings
from tuner.workers.pool import Pool

# Of a tuning command that is not spent on trials: processes that start, and the final; and what
# is spent on them in any case.
_AROUND_SECS = 40.0
_LEAST_SHARE = 0.4
_LEAST_PATIENCE_SECS = 5.0


@dataclass
class Bench:
    """A step under way.

    Attributes:
        name: Of the step.
        target: As a user writes it.
        out: Folder of the report.
        timer: The step's time.
        save: Writes the report with what is known so far.
        sizes: Of the networks.
        facts: What was found, for the report; JSON.
        commands: The tuner's commands that were run.
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
        """Where torch runs, ``cpu`` or ``cuda``."""
        return "cpu" if "llvm" in self.target else "cuda"

    @property
    def data_dir(self) -> Path:
        """Of this step alone; a second run of the step goes on from there."""
        return (self.out / "data" / self.name).absolute()

    @property
    def settings(self) -> Settings:
        """Of this step."""
        place = {"data_dir": self.data_dir, "database": f"sqlite:///{self.data_dir}/tuner.db"}
        return read_settings(place)

    @property
    def n_threads(self) -> int:
        """Cores that we may use."""
        return len(os.sched_getaffinity(0))

    @property
    def patience_secs(self) -> float:
        """How long a few runs of a network may take: no runtime is to have all of the time."""
        return min(self.left_secs, self.timer.secs / 4)

    @property
    def left_secs(self) -> float:
        """What is left, as a time-out of a worker; a few seconds when nothing is."""
        return max(self.timer.left, _LEAST_PATIENCE_SECS)

    def note(self, **facts: Any) -> None:
        """Add facts to the report, which is written."""
        self.facts.update(facts)
        self.save()

    def tuner(self, *words: str, secs: float) -> dict[str, Any]:
        """Run a command of the tuner with this step's data; see :func:`run_tuner`."""
        place = ("--data-dir", str(self.data_dir), "--database", self.settings.database)
        self.commands.append(shlex.join(["tuner", *words]))
        return run_tuner([*words, *place], secs, self._log)

    def tune(self, model: str, secs: float, *words: str) -> dict[str, Any]:
        """Tune a network, and say what that came to.

        Args:
            model: As a user writes it.
            secs: How long the command may take; it is asked to end in time.
            words: More of the command; with ``--trials`` it gets no other limit.

        Raises:
            StepFailed: If it failed.
        """
        begun, timer = now(), Timer(secs)
        limit: tuple[str, ...] = ()
        if "--trials" not in words:
            wanted = max(secs - _AROUND_SECS, _LEAST_SHARE * secs)
            limit = ("--seconds", f"{self._spent_secs() + wanted:.0f}")
        printed = self.tuner("tune", model, "--target", self.target, *limit, *words, secs=secs)
        if printed.get("error"):
            raise StepFailed(str(printed["error"]))
        return {
            **job_records.read_job(self.data_dir, begun),
            "command_secs": timer.spent,
            "was_stopped": not printed,
            "n_tasks": len(printed["tasks"]) if printed else None,
            "estimated_secs": printed.get("total_latency_secs"),
            "busy": read_busy(self._log),
        }

    def build(self, model: str, name: str) -> dict[str, Any]:
        """Build a network into a library of a name, and say what it is made of.

        Raises:
            StepFailed: If it failed, or took too long.
        """
        words = ("build", model, "--target", self.target, "--out", str(self.library(name)))
        printed = self.tuner(*words, secs=self.timer.left)
        if not printed:
            raise StepFailed("building took longer than the step's share of the time")
        return {key: printed[key] for key in ("secs", "tuned", "fallbacks", "estimated_secs")}

    def library(self, name: str) -> Path:
        """Return the folder of a library."""
        return self.data_dir / f"{name}.lib"

    def scratch(self, name: str) -> Path:
        """Return where a file is that only the step needs."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        return self.data_dir / name

    def keep_inputs(self, inputs: dict[str, np.ndarray[Any, Any]]) -> Path:
        """Write inputs for every runtime."""
        path = self.scratch("inputs.npz")
        np.savez(path, **inputs)  # type: ignore[arg-type]
        return path

    def ours(self, pool: Pool, name: str, inputs: Path) -> Runs:
        """Return what runs a library in a worker."""

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
        """Seconds that the step's job has had, for they count."""
        if not (self.data_dir / "tuner.db").is_file():
            return 0.0
        found = job_records.read_job(self.data_dir, now())
        return float(found.get("spent_secs", 0.0))
