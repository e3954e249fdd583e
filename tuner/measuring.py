"""Build, verify and time candidates; whatever goes wrong with one is its result, not an error."""

import hashlib
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tuner.disk_room import check_blame, needing_room
from tuner.engines.base import (
    BuildRequest,
    BuildResult,
    Candidate,
    ErrorKind,
    EvaluatorSettings,
    RunRequest,
    RunResult,
)
from tuner.errors import DiskFull, WorkerLost, WorkError
from tuner.executors.local import LocalExecutor
from tuner.executors.pool import Call, CallTimeout

_REFERENCE_TIMEOUT_SECS = 300.0
_ATTEMPTS = 2


@dataclass(frozen=True)
class Subject:
    """The task that is measured: id, workload hash, IR, and its best latency in seconds."""

    task_id: int
    workload: str
    ir: bytes
    best_secs: float = float("inf")


def scratch_of(data_dir: Path) -> Path:
    """Return where artifacts lie; what a killed run left there may be removed by the next."""
    return data_dir / "scratch"


class Measurer:
    """Measures candidates of one target on this machine.

    Builds run side by side in the builders; when they are all done, the candidates are
    timed one after the other in the runner while nothing else of ours runs.
    """

    def __init__(
        self,
        workers: LocalExecutor,
        target: str,
        evaluator: EvaluatorSettings,
        data_dir: Path,
        build_timeout_secs: float,
    ) -> None:
        self._workers = workers
        self._target = target
        self._evaluator = evaluator
        spec = hashlib.sha256(target.encode()).hexdigest()[:16]
        self._references = data_dir / "references" / spec
        self._build_timeout_secs = build_timeout_secs
        scratch = scratch_of(data_dir)
        with needing_room():
            scratch.mkdir(parents=True, exist_ok=True)
            self._scratch = Path(tempfile.mkdtemp(dir=scratch))

    def measure(
        self, subject: Subject, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, RunResult]]:
        """Yield each candidate with its result as soon as there is one, failed builds first.

        Raises:
            DiskFull: If there is no room; a candidate that failed by it has no result.
        """
        try:
            reference = self.reference(subject)
        except DiskFull:
            raise
        except WorkError as error:
            yield from ((candidate, _failed("run_error", error)) for candidate in candidates)
            return
        built = self._build_all(subject, [candidate.trace for candidate in candidates])
        ready = []
        for candidate, result in zip(candidates, built, strict=True):
            if isinstance(result, RunResult):
                yield candidate, result
            else:
                ready.append((candidate, result))
        best_secs = subject.best_secs
        for candidate, artifact in ready:
            with needing_room():
                result = check_blame(self._run(artifact, reference, best_secs), self._scratch)
            shutil.rmtree(artifact, ignore_errors=True)
            best_secs = min(best_secs, *(result.run_secs or (best_secs,)))
            yield candidate, result

    def compare(
        self, subject: Subject, traces: Sequence[str], n_turns: int, *, flush_bytes: int = 0
    ) -> list[RunResult]:
        """Time verified traces again, in turns; a trace that no longer builds is its error.

        Args:
            subject: Their task.
            traces: To compare.
            n_turns: How often each has its turn.
            flush_bytes: Bytes that are read before each sample, at least the private caches.

        Raises:
            DiskFull: If there is no room for what they write.
        """
        built = self._build_all(subject, traces)
        ready = [artifact for artifact in built if isinstance(artifact, str)]
        if not ready:
            return [result for result in built if isinstance(result, RunResult)]
        evaluator = self._evaluator
        if flush_bytes and evaluator.cache_flush:
            # Such a flush takes milliseconds: the samples of the turns have to do.
            evaluator = replace(evaluator, flush_bytes=flush_bytes, min_repeat_ms=0)
        requests = [RunRequest(path, self._target, "", evaluator) for path in ready]
        timeout = self._evaluator.timeout_secs * len(ready) * n_turns
        try:
            timed = iter(
                self._workers.measure("run_interleaved", requests, n_turns, timeout_secs=timeout)
            )
        except (CallTimeout, WorkError) as error:
            timed = iter([_failed("run_error", error)] * len(ready))
        finally:
            for artifact in ready:
                shutil.rmtree(artifact, ignore_errors=True)
        return [
            result if isinstance(result, RunResult) else _checked(next(timed)) for result in built
        ]

    def reference(self, subject: Subject) -> str:
        """Return the file with the expected output of a workload, computing it once.

        Raises:
            DiskFull: If there is no room for it.
            WorkError: If the unscheduled workload does not build or run.
        """
        kept = self._references / f"{subject.workload}.npz"
        if kept.is_file():
            return str(kept)
        kept.parent.mkdir(parents=True, exist_ok=True)
        (built,) = self._build_all(subject, [""])
        if isinstance(built, RunResult):
            raise WorkError(
                f"workload {subject.workload} does not build unscheduled: {built.error_text}"
            )
        try:
            with needing_room():
                self._compute_reference(built, str(kept))
        except WorkerLost as error:
            raise WorkError(
                f"workload {subject.workload} does not run unscheduled: {error}"
            ) from error
        except CallTimeout as error:
            raise WorkError(
                f"workload {subject.workload} runs longer than {_REFERENCE_TIMEOUT_SECS:.0f} s "
                "unscheduled, so its candidates cannot be verified"
            ) from error
        finally:
            shutil.rmtree(built, ignore_errors=True)
        return str(kept)

    def _compute_reference(self, artifact: str, kept: str) -> None:
        """Run an unscheduled artifact; a runner that somebody killed is no verdict on it."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._workers.measure(
                    "reference", artifact, self._target, kept, timeout_secs=_REFERENCE_TIMEOUT_SECS
                )
            except WorkerLost as error:
                if error.crashed or attempt == _ATTEMPTS:
                    raise
            else:
                return

    def close(self) -> None:
        """Remove artifacts that are left."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _build_all(self, subject: Subject, traces: Sequence[str]) -> list[str | RunResult]:
        """Build traces side by side; an artifact's folder, or the failure, for each."""
        with needing_room():
            requests = [
                BuildRequest(subject.ir, self._target, trace, tempfile.mkdtemp(dir=self._scratch))
                for trace in traces
            ]
            calls = [self._submit_build(request) for request in requests]
            built = [self._built(*pair) for pair in zip(requests, calls, strict=True)]
        return [
            each if isinstance(each, str) else check_blame(each, self._scratch) for each in built
        ]

    def _submit_build(self, request: BuildRequest) -> Call:
        return self._workers.submit("build", request, timeout_secs=self._build_timeout_secs)

    def _built(self, request: BuildRequest, call: Call) -> str | RunResult:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                result: BuildResult = call.result()
            except CallTimeout:
                limit = f"building took longer than {self._build_timeout_secs:g} s"
                return RunResult(error_kind="build_timeout", error_text=limit)
            except WorkerLost as error:
                if error.crashed:
                    return _failed("build_error", error)
                if attempt == _ATTEMPTS:
                    return _failed("worker_lost", error)
                call = self._submit_build(request)
            except WorkError as error:
                return _failed("build_error", error)
            else:
                if result.error_text:
                    return RunResult(error_kind="build_error", error_text=result.error_text)
                return result.artifact
        raise AssertionError("unreachable")

    def _run(self, artifact: str, reference: str, best_secs: float) -> RunResult:
        request = RunRequest(artifact, self._target, reference, self._evaluator, best_secs)
        timeout = self._evaluator.timeout_secs
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                result: RunResult = self._workers.measure("run", request, timeout_secs=timeout)
            except CallTimeout:
                limit = f"running took longer than {timeout:g} s"
                return RunResult(error_kind="run_timeout", error_text=limit)
            except WorkerLost as error:
                if error.crashed:
                    return _failed("run_error", error)
                if attempt == _ATTEMPTS:
                    return _failed("worker_lost", error)
            except WorkError as error:
                return _failed("run_error", error)
            else:
                return _checked(result)
        raise AssertionError("unreachable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _checked(result: RunResult) -> RunResult:
    """Turn samples that are no durations into the error they are."""
    samples = result.run_secs
    if samples is None or (samples and all(0 < secs < math.inf for secs in samples)):
        return result
    return RunResult(error_kind="run_error", error_text=f"samples are no durations: {samples}")


def _failed(kind: ErrorKind, error: Exception) -> RunResult:
    return RunResult(error_kind=kind, error_text=str(error))
