"""Execution of the steps of the GPU report, each within its time and independent of the others."""

import json
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import _gpu_commands as commands
from benchmarks import _gpu_writer as writer
from benchmarks._gpu_sharing import MIN_SECS, Timer, allot


@dataclass(frozen=True)
class Step:
    """Step of the report.

    Attributes:
        name: Name on the command line.
        title: Title in the report.
        weight: Weight of its share of the time.
        function: ``MODULE.FUNCTION``, imported when it is called, so that a failed import fails the
            step only. It takes a Bench and the arguments.
        arguments: Arguments of the function.
    """

    name: str
    title: str
    weight: float
    function: str
    arguments: tuple[str, ...] = ()


@dataclass
class Report:
    """Report that is written after every new result.

    Attributes:
        target: Target as a user writes it.
        minutes: Limit of all steps together.
        out: Folder of the report; its steps that are not run again are kept.
        is_tiny: True for small networks, to rehearse.
        lost: Reason why the GPU cannot be used any more; empty if it can.
        rows: Result of each step.
    """

    target: str
    minutes: float
    out: Path
    is_tiny: bool = False
    lost: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)

    def run(self, chosen: Sequence[Step]) -> None:
        """Run steps, one after the other."""
        self._timer = Timer(self.minutes * 60)
        self._date = datetime.now(UTC).isoformat(timespec="seconds")
        names = {step.name for step in chosen}
        kept = [row for row in self._read() if row["name"] not in names]
        new = [_row_of(step) for step in chosen]
        self.rows = [*kept, *new]
        for index, (step, row) in enumerate(zip(chosen, new, strict=True)):
            secs = allot(self._timer.left, [later.weight for later in chosen[index:]])
            row["allotted_secs"] = secs
            if self.lost:
                row["reason"] = "the GPU is lost"
            elif secs < MIN_SECS:
                row["reason"] = "the time was over"
            else:
                self._run(step, row, Timer(secs))
            self.write()

    def write(self) -> None:
        """Write all results so far."""
        writer.write(
            {
                "benchmark": "gpu_report",
                "date": self._date,
                "target": self.target,
                "tiny": self.is_tiny,
                "minutes": self.minutes,
                "secs": self._timer.spent,
                "command": shlex.join(["python", "-m", "benchmarks.gpu_report", *sys.argv[1:]]),
                "lost": self.lost,
                "tutorial": writer.TUTORIAL,
                "steps": self.rows,
            },
            self.out,
        )

    def _run(self, step: Step, row: dict[str, Any], timer: Timer) -> None:
        """Run a step; an exception becomes the reason of its failure."""
        row.update(state="under way", gpu_before=self._ask_gpu())
        self.write()
        print(f"{step.title}: up to {timer.secs:.0f} s", file=sys.stderr, flush=True)
        try:
            self._call(step, row, timer)
        except Exception as error:
            self._log(step)
            row.update(state="failed", reason=_reason(error))
        except BaseException:
            row.update(state="interrupted", reason="the report was interrupted")
            row["secs"] = timer.spent
            self.write()
            raise
        else:
            row["state"] = "partial" if row["facts"].get("not_reached") else "done"
        row.update(secs=timer.spent, gpu_after=self._ask_gpu())
        if self._is_gpu:
            self.lost = commands.probe()
        print(f"  {row['state']} {row['reason']}".rstrip(), file=sys.stderr, flush=True)

    def _call(self, step: Step, row: dict[str, Any], timer: Timer) -> None:
        from benchmarks._gpu_bench import Bench
        from benchmarks._gpu_networks import FULL, TINY

        bench = Bench(
            step.name, self.target, self.out, timer, self.write, TINY if self.is_tiny else FULL
        )
        row.update(facts=bench.facts, commands=bench.commands)
        module, _, function = step.function.rpartition(".")
        getattr(import_module(module), function)(bench, *step.arguments)

    @property
    def _is_gpu(self) -> bool:
        return "llvm" not in self.target

    def _ask_gpu(self) -> dict[str, str]:
        return commands.ask_gpu() if self._is_gpu else {}

    def _log(self, step: Step) -> None:
        path = self.out / "logs" / f"{step.name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as stream:
            traceback.print_exc(file=stream)

    def _read(self) -> list[dict[str, Any]]:
        """Return the steps of an earlier report on the same target, if there is one."""
        try:
            earlier = json.loads((self.out / "report.json").read_text())
        except (OSError, ValueError):
            return []
        same = (earlier.get("target"), earlier.get("tiny")) == (self.target, self.is_tiny)
        return list(earlier["steps"]) if same else []


def _row_of(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "title": step.title,
        "state": "not reached",
        "reason": "",
        "secs": 0.0,
        "allotted_secs": 0.0,
        "commands": [],
        "facts": {},
    }


def _reason(error: BaseException) -> str:
    """Return the reason of a failure; exceptions of libraries need their type."""
    text = " ".join(str(error).split())
    if isinstance(error, commands.StepError):
        return text
    if isinstance(error, TimeoutError):
        return "it took longer than its share of the time"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
