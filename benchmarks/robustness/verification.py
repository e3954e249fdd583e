"""Mutation test of the verification: wrong kernels are refused, correct schedules are not.

Kernels of different operators and types are broken in three ways each, and correct schedules are
drawn from TVM's space for each. The program prints how many of both were refused; it fails unless
all broken ones were, and no correct one.

    python -m benchmarks.robustness.verification --schedules 1000
"""

import argparse
import itertools
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.robustness import kernel_cases
from benchmarks.robustness.kernel_mutations import MUTATIONS
from tuner import cost_models
from tuner.engines.base import BuildRequest, InputKind, ReferenceRequest, RunResult, SearchRequest
from tuner.engines.relax import worker
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.run import artifacts
from tuner.engines.verification import checks

_N_MUTATIONS = 3
_RUN_TIMEOUT_SECS = 60.0
Check = Callable[[str, str, Sequence[str]], RunResult]
_KINDS: tuple[InputKind, ...] = ("whole", "real")


@dataclass
class Report:
    """Counts of the test, and the names of what was judged wrongly.

    Attributes:
        n_broken: Broken kernels.
        n_correct: Correct schedules.
        n_slow: Correct schedules that ran for more than a minute, and were not judged.
        missed: Broken kernels that were accepted.
        refused: Correct schedules that were refused, with the reason.
        caught_by: Broken kernels by the inputs that revealed them first.
    """

    n_kernels: int = 0
    n_broken: int = 0
    n_correct: int = 0
    n_slow: int = 0
    missed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    caught_by: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))

    @property
    def is_good(self) -> bool:
        """True if every verdict was right."""
        return bool(self.n_broken) and not self.missed and not self.refused


class Runner:
    """A process that compares builds, and is replaced when one takes too long."""

    def __init__(self) -> None:
        self._pool = self._start()

    def check(self, artifact: str, target: str, references: Sequence[str]) -> RunResult:
        """Compare the outputs of a build with references; ``run_timeout`` after a minute."""
        call = self._pool.submit(_check, artifact, target, references)
        try:
            return call.result(_RUN_TIMEOUT_SECS)
        except TimeoutError:
            for process in multiprocessing.active_children():
                process.kill()
            self._pool.shutdown()
            self._pool = self._start()
            return RunResult(error_kind="run_timeout")

    @staticmethod
    def _start() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _check(artifact: str, target: str, references: Sequence[str]) -> RunResult:
    return checks.check(artifacts.load_kernel(artifact, target), references)


class Judge:
    """Verdicts on builds of one kernel.

    Args:
        function: The kernel, unscheduled.
        folder: Folder for artifacts and references.
        seed: Seed of the inputs of whole numbers.
        check: Compares the outputs of a build for a target with references.
    """

    def __init__(self, function: Any, folder: Path, seed: int, check: Check | None = None) -> None:
        self._folder = folder
        self._check = check or _check
        self._target = worker.describe_target("llvm").spec
        self.ir = workloads.dump(workloads.as_workload(function))
        self.references: dict[InputKind, str] = {}
        for kind in _KINDS:
            request = ReferenceRequest(self.ir, self._target, kind, seed if kind == "whole" else 0)
            path = folder / f"{kind}.npz"
            path.write_bytes(worker.reference(request))
            self.references[kind] = str(path)

    def verdict(self, ir: bytes, trace: str, kinds: Sequence[InputKind] = _KINDS) -> RunResult:
        """Build and compare."""
        # A path that was loaded before would give the library that is still in memory.
        out = tempfile.mkdtemp(dir=self._folder)
        built = worker.build(BuildRequest(ir, self._target, trace, out))
        if not built.artifact:
            return RunResult(error_kind="build_error", error_text=built.error_text)
        return self._check(built.artifact, self._target, [self.references[kind] for kind in kinds])

    def schedules(self, n_schedules: int, seed: int) -> list[str]:
        """Draw traces of correct schedules."""
        model = cost_models.create("random", seed).save()
        request = SearchRequest(self.ir, self._target, (), model, n_schedules, 64, 1, seed)
        return [candidate.trace for candidate in worker.propose(request)]


def mutants(text: str) -> Iterator[tuple[str, bytes]]:
    """Yield wrong variants of a function by the names of their mutations, at most three."""
    n_mutants = 0
    for name, mutate in MUTATIONS.items():
        mutated = mutate(text)
        if mutated is None or mutated == text or n_mutants == _N_MUTATIONS:
            continue
        n_mutants += 1
        yield name, workloads.dump(workloads.as_workload(kernel_cases.parse(mutated)))


def judge_mutants(
    name: str, create: Callable[[], Any], check: Check, report: Report, seed: int
) -> None:
    """Judge the mutants of one kernel."""
    function = create()
    report.n_kernels += 1
    with tempfile.TemporaryDirectory() as folder:
        bench = Judge(function, Path(folder), seed, check)
        for mutation, ir in mutants(function.script()):
            report.n_broken += 1
            for kind in _KINDS:
                verdict = bench.verdict(ir, "", [kind])
                if verdict.error_kind == "wrong_result":
                    report.caught_by[kind] += 1
                    break
            else:
                report.missed.append(f"{name}: {mutation} {verdict.error_text}".strip())


def judge_schedules(
    name: str,
    create: Callable[[], Any],
    check: Check,
    report: Report,
    n_schedules: int,
    seed: int,
) -> None:
    """Judge correct schedules of one kernel."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Judge(create(), Path(folder), seed, check)
        for trace in bench.schedules(n_schedules, seed):
            verdict = bench.verdict(bench.ir, trace)
            if verdict.error_kind == "run_timeout":
                report.n_slow += 1
            if verdict.error_kind in ("build_error", "run_timeout"):
                continue
            report.n_correct += 1
            if verdict.error_kind:
                report.refused.append(f"{name}: {verdict.error_text}")


def main() -> int:
    """Run the test and print its report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000, help="correct schedules to draw")
    parser.add_argument("--seed", type=int, default=1, help="seed of inputs and schedules")
    parser.add_argument("--only", default="", help="part of the names of the kernels")
    options = parser.parse_args()
    report, runner, started = Report(), Runner(), time.monotonic()
    kernels = {n: create for n, create in kernel_cases.functions().items() if options.only in n}
    for name, create in kernels.items():
        judge_mutants(name, create, runner.check, report, options.seed)
    # Small spaces have few schedules; the others make up for them, under further seeds.
    for seed in itertools.count(options.seed):
        before = report.n_correct
        for name, create in kernels.items():
            n_schedules = min(
                -(-options.schedules // len(kernels)), options.schedules - report.n_correct
            )
            if n_schedules > 0:
                judge_schedules(name, create, runner.check, report, n_schedules, seed)
            print(
                f"{name}: {report.n_correct} schedules, {time.monotonic() - started:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        if report.n_correct in (before, options.schedules):
            break
    print(json.dumps(asdict(report), indent=1))
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
