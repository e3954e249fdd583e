"""Build, verify and time candidates; whatever goes wrong with one is its result, not an error."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.devices.device import Device
from tuner.engines.base import (
    BuildRequest,
    Candidate,
    EvaluatorSettings,
    RunRequest,
    RunResult,
    Verdict,
)
from tuner.errors import DeviceLost, DiskFull, WorkerLost, WorkError
from tuner.measure.disk_space import check_blame, is_full, needing_room
from tuner.tuning.context import TuningContext
from tuner.workers import result_validation
from tuner.workers.base import CallTimeout

_REFERENCE_TIMEOUT_SECS = 300.0
_SANITIZE_TIMEOUT_SECS = 900.0
_ATTEMPTS = 2
# Asked of a device while it works, so that it goes on at once.
_RUNS_AHEAD = 1
_POISON = f"{_ATTEMPTS} devices went away while they ran it: it is not tried again"
_POISONED = RunResult(error_kind="worker_lost", error_text=_POISON)

Told = Callable[[Candidate, RunResult], None]
_Built = tuple[Candidate, str | RunResult]


@dataclass(frozen=True)
class TaskUnderTest:
    """The task that is measured: id, workload hash, IR, and its best latency in seconds."""

    task_id: int
    workload: str
    ir: bytes
    best_secs: float = float("inf")


class CandidateMeasurer:
    """Measures candidates of one target.

    Where a device shares its cores with builders, the candidates are timed when all are built;
    on any other each is timed as soon as it is built and the device is free.
    """

    def __init__(
        self,
        context: TuningContext,
        target: str,
        evaluator: EvaluatorSettings,
        build_timeout_secs: float,
    ) -> None:
        self._context = context
        self._target = target
        self._evaluator = evaluator
        spec = hashlib.sha256(target.encode()).hexdigest()[:16]
        self._references = context.data_dir / "references" / spec
        self._build_timeout_secs = build_timeout_secs

    async def measure(
        self,
        subject: TaskUnderTest,
        candidates: Sequence[Candidate],
        device: Device,
        told: Told,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """Tell of each candidate's result as soon as there is one.

        Args:
            subject: Their task.
            candidates: To measure.
            device: Where.
            told: Of each candidate and its result.
            on_turn: Called when the device is free and timing starts.

        Raises:
            DiskFull: If there is no room; a candidate that failed by it has no result.
            DeviceLost: If the device went away; some candidates have no result.
        """
        run = _RoundMeasurement(self, subject, device, told)
        if device.runner.shares_cores:
            await run.after_building(candidates, on_turn)
        else:
            await run.while_building(candidates, on_turn)

    async def compare(
        self,
        subject: TaskUnderTest,
        traces: Sequence[str],
        n_turns: int,
        device: Device,
        *,
        flush_bytes: int = 0,
    ) -> list[RunResult]:
        """Time verified traces again, in turns; a trace that no longer builds is its error.

        Args:
            subject: Their task.
            traces: To compare.
            n_turns: How often each has its turn.
            device: Where.
            flush_bytes: Bytes that are read before each sample, at least the private caches.

        Raises:
            DiskFull: If there is no room for what they write.
            DeviceLost: If the device went away.
        """
        trace = " ".join(traces)
        if self.is_poison(subject, trace):
            return [_POISONED] * len(traces)
        async with self._context.cpu_gate.working():
            built = await self.build_all(subject, traces)
        ready = [artifact for artifact in built if isinstance(artifact, str)]
        if not ready:
            return [result for result in built if isinstance(result, RunResult)]
        try:
            async with device.alone(self._context.cpu_gate, self._target):
                with self.accusing(subject, trace):
                    timed = await self._race(ready, n_turns, device, flush_bytes)
        except DeviceLost:
            if not self.is_poison(subject, trace):
                raise
            return [_POISONED] * len(traces)
        finally:
            self.discard(ready)
        results = iter(timed)
        return [result if isinstance(result, RunResult) else next(results) for result in built]

    async def _race(
        self, artifacts: Sequence[str], n_turns: int, device: Device, flush_bytes: int
    ) -> list[RunResult]:
        evaluator = self._evaluator
        if flush_bytes and evaluator.cache_flush:
            # Such a flush takes milliseconds: the samples of the turns have to do.
            evaluator = replace(evaluator, flush_bytes=flush_bytes, min_repeat_ms=0)
        requests = [RunRequest(path, self._target, "", evaluator) for path in artifacts]
        timeout = self._evaluator.timeout_secs * len(artifacts) * n_turns
        try:
            timed = await self._interleave(device, requests, n_turns, timeout)
        except DeviceLost:
            raise
        except (CallTimeout, WorkError, OSError) as error:
            _raise_if_full(error)
            return [result_validation.failed("run_error", error)] * len(artifacts)
        if not isinstance(timed, list) or len(timed) != len(artifacts):
            return [result_validation.malformed("run_error", timed)] * len(artifacts)
        return [result_validation.validate_run(result) for result in timed]

    async def _interleave(
        self, device: Device, requests: Sequence[RunRequest], n_turns: int, timeout_secs: float
    ) -> object:
        """Time artifacts in turns; a process that left before it began is no verdict on them."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await device.runner.measure(
                    "run_interleaved", requests, n_turns, timeout_secs=timeout_secs
                )
            except DeviceLost:
                raise
            except WorkerLost as error:
                if error.crashed or attempt == _ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def reference(self, subject: TaskUnderTest, device: Device) -> str:
        """Return the file with the expected output of a workload, computing it once.

        Raises:
            DiskFull: If there is no room for it.
            DeviceLost: If the device went away.
            WorkError: If the unscheduled workload does not build or run.
        """
        kept = self._references / f"{subject.workload}.npz"
        async with self._context.reference_locks[str(kept)]:
            if not kept.is_file():
                await self._make_reference(subject, device, kept)
        return str(kept)

    async def _make_reference(self, subject: TaskUnderTest, device: Device, kept: Path) -> None:
        self._refuse_poison(subject)
        with needing_room():
            kept.parent.mkdir(parents=True, exist_ok=True)
        async with self._context.cpu_gate.working():
            (built,) = await self.build_all(subject, [""])
        if isinstance(built, RunResult):
            raise WorkError(
                f"workload {subject.workload} does not build unscheduled: {built.error_text}"
            )
        try:
            async with device.alone(self._context.cpu_gate, self._target):
                with needing_room(), self.accusing(subject, ""):
                    await self._compute_reference(built, str(kept), device)
        except DeviceLost:
            self._refuse_poison(subject)
            raise
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
            self.discard([built])

    async def _compute_reference(self, artifact: str, kept: str, device: Device) -> None:
        """Run an unscheduled artifact; a runner that somebody killed is no verdict on it."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await device.runner.measure(
                    "reference", artifact, self._target, kept, timeout_secs=_REFERENCE_TIMEOUT_SECS
                )
            except DeviceLost:
                raise
            except WorkerLost as error:
                if error.crashed or attempt == _ATTEMPTS:
                    raise
            else:
                if Path(kept).is_file():
                    return
                if attempt == _ATTEMPTS:
                    raise WorkError("the unscheduled workload left no output")

    async def build_all(
        self, subject: TaskUnderTest, traces: Sequence[str]
    ) -> list[str | RunResult]:
        """Build traces side by side; an artifact's name, or the failure, for each.

        Raises:
            DiskFull: If there is no room.
        """
        return await asyncio.gather(*(self.build(subject, trace) for trace in traces))

    async def build(self, subject: TaskUnderTest, trace: str) -> str | RunResult:
        """Build a trace; what comes of it is an artifact's name, or the failure.

        Raises:
            DiskFull: If there is no room.
        """
        with needing_room():
            built = await self._build(BuildRequest(subject.ir, self._target, trace))
        return built if isinstance(built, str) else check_blame(built, self._context.data_dir)

    async def _build(self, request: BuildRequest) -> str | RunResult:
        timeout = self._build_timeout_secs
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                result = await self._context.executor.build(request, timeout_secs=timeout)
            except CallTimeout:
                limit = f"building took longer than {timeout:g} s"
                return RunResult(error_kind="build_timeout", error_text=limit)
            except WorkerLost as error:
                if error.crashed:
                    return result_validation.failed("build_error", error)
                if attempt == _ATTEMPTS:
                    return result_validation.failed("worker_lost", error)
            except (WorkError, OSError) as error:
                _raise_if_full(error)
                return result_validation.failed("build_error", error)
            else:
                return result_validation.validate_build(result)
        raise AssertionError("unreachable")

    async def run(self, request: RunRequest, device: Device) -> RunResult:
        """Run an artifact; whatever comes of it is its result.

        Raises:
            DiskFull: If there is no room.
            DeviceLost: If the device went away.
        """
        with needing_room():
            return check_blame(await self._try(request, device), self._context.data_dir)

    async def sanitize(
        self, subject: TaskUnderTest, trace: str, device: Device
    ) -> RunResult | None:
        """Run a trace under the sanitizer of a device.

        Returns:
            None if nothing is wrong with it, or what is.

        Raises:
            RequestError: If the device has no sanitizer.
            WorkError: If the sanitizer came to no end.
        """
        async with self._context.cpu_gate.working():
            built = await self.build(subject, trace)
        if isinstance(built, RunResult):
            return built
        try:
            async with device.alone(self._context.cpu_gate, self._target):
                verdicts = await device.runner.measure(
                    "sanitize", built, self._target, timeout_secs=_SANITIZE_TIMEOUT_SECS
                )
        except CallTimeout as error:
            limit = f"{_SANITIZE_TIMEOUT_SECS:g} s"
            raise WorkError(f"the sanitizer took longer than {limit}") from error
        finally:
            self._context.executor.discard(built)
        return _sanitized(verdicts)

    def request(self, artifact: str, reference: str, best_secs: float) -> RunRequest:
        """Ask for an artifact to be compared and timed."""
        return RunRequest(artifact, self._target, reference, self._evaluator, best_secs)

    async def _try(self, request: RunRequest, device: Device) -> RunResult:
        timeout = self._evaluator.timeout_secs
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                result = await device.runner.measure("run", request, timeout_secs=timeout)
            except CallTimeout:
                limit = f"running took longer than {timeout:g} s"
                return RunResult(error_kind="run_timeout", error_text=limit)
            except DeviceLost:
                raise
            except WorkerLost as error:
                if error.crashed:
                    return result_validation.failed("run_error", error)
                if attempt == _ATTEMPTS:
                    return result_validation.failed("worker_lost", error)
            except (WorkError, OSError) as error:
                _raise_if_full(error)
                return result_validation.failed("run_error", error)
            else:
                return result_validation.validate_run(result)
        raise AssertionError("unreachable")

    @contextmanager
    def accusing(self, subject: TaskUnderTest, trace: str) -> Iterator[None]:
        """Note it if the device goes away inside, while it runs a trace."""
        try:
            yield
        except DeviceLost:
            self._context.crash_counts[subject.task_id, trace] += 1
            raise

    def is_poison(self, subject: TaskUnderTest, trace: str) -> bool:
        """Whether so many devices went away under a trace that it is not tried again."""
        return self._context.crash_counts.get((subject.task_id, trace), 0.0) >= _ATTEMPTS

    def _refuse_poison(self, subject: TaskUnderTest) -> None:
        if self.is_poison(subject, ""):
            raise WorkError(f"workload {subject.workload} unscheduled: {_POISON}")

    def discard(self, artifacts: Iterable[str]) -> None:
        """Forget artifacts; those that were forgotten before, too."""
        for artifact in artifacts:
            self._context.executor.discard(artifact)


@dataclass
class _RoundMeasurement:
    """The candidates of one round on one device."""

    measurer: CandidateMeasurer
    subject: TaskUnderTest
    device: Device
    told: Told

    def __post_init__(self) -> None:
        self._best_secs = self.subject.best_secs
        self._context = self.measurer._context
        self._reference = ""
        self._asked: list[Candidate] = []
        self._is_lost = False

    async def after_building(
        self, candidates: Sequence[Candidate], on_turn: Callable[[], None]
    ) -> None:
        """Time in the order of the candidates, failed builds first."""
        if not await self._find_reference(candidates):
            return
        async with self._context.cpu_gate.working():
            built = await self.measurer.build_all(self.subject, [c.trace for c in candidates])
        ready = []
        for candidate, result in zip(candidates, built, strict=True):
            if isinstance(result, RunResult):
                self.told(candidate, result)
            else:
                ready.append((candidate, result))
        try:
            await self._time_all(ready, on_turn)
        finally:
            self.measurer.discard([artifact for _, artifact in ready])

    async def _time_all(
        self, ready: Sequence[tuple[Candidate, str]], on_turn: Callable[[], None]
    ) -> None:
        async with self.device.alone(self._context.cpu_gate, self.measurer._target):
            on_turn()
            for candidate, artifact in ready:
                await self._time(candidate, artifact)

    async def while_building(
        self, candidates: Sequence[Candidate], on_turn: Callable[[], None]
    ) -> None:
        """Time in the order in which builds end."""
        builds = [asyncio.ensure_future(self._build(candidate)) for candidate in candidates]
        try:
            if not await self._find_reference(candidates):
                return
            async with self.device.alone(self._context.cpu_gate, self.measurer._target):
                on_turn()
                await self._time_built(asyncio.as_completed(builds))
        finally:
            # Those that nobody came to time go on: their workers would, whoever waits for them.
            for build in builds:
                build.add_done_callback(self._forget)

    async def _find_reference(self, candidates: Sequence[Candidate]) -> bool:
        """Find what they are compared with; without it they fail, and there is nothing to time."""
        try:
            self._reference = await self.measurer.reference(self.subject, self.device)
        except (DiskFull, DeviceLost):
            raise
        except WorkError as error:
            for candidate in candidates:
                self.told(candidate, result_validation.failed("run_error", error))
            return False
        return True

    async def _time_built(self, builds: Iterator[Awaitable[_Built]]) -> None:
        """Ask for a run while the one before goes on, so that the device need not wait for us."""
        lanes = [asyncio.ensure_future(self._time_next(builds)) for _ in range(1 + _RUNS_AHEAD)]
        try:
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()

    async def _time_next(self, builds: Iterator[Awaitable[_Built]]) -> None:
        """Time what nobody else has taken, one after the other."""
        for each in builds:
            candidate, built = await each
            if isinstance(built, RunResult):
                self.told(candidate, built)
            else:
                await self._time(candidate, built)

    def _forget(self, build: asyncio.Task[_Built]) -> None:
        """Forget an artifact, for nobody may have come to time it."""
        if not build.cancelled() and build.exception() is None:
            artifact = build.result()[1]
            self.measurer.discard([artifact] if isinstance(artifact, str) else [])

    async def _build(self, candidate: Candidate) -> _Built:
        async with self._context.cpu_gate.working():
            return candidate, await self.measurer.build(self.subject, candidate.trace)

    async def _time(self, candidate: Candidate, artifact: str) -> None:
        request = self.measurer.request(artifact, self._reference, self._best_secs)
        self._asked.append(candidate)
        try:
            result = await self.measurer.run(request, self.device)
        except DeviceLost:
            self._accuse(candidate)
            raise
        finally:
            self._asked.remove(candidate)
            self._context.executor.discard(artifact)
        self._best_secs = min(self._best_secs, *(result.run_secs or (self._best_secs,)))
        self.told(candidate, result)

    def _accuse(self, candidate: Candidate) -> None:
        """Blame it for a device that went away, if it is what the device ran: the first asked.

        One that only waited for its turn has half of the blame, or else a device that goes away
        as soon as it is asked for a candidate would do so for ever.
        """
        is_first = self._asked[0] is candidate
        if self._is_lost:
            return
        self._is_lost = is_first
        self._context.crash_counts[self.subject.task_id, candidate.trace] += (
            1.0 if is_first else 0.5
        )
        if self.measurer.is_poison(self.subject, candidate.trace):
            self.told(candidate, _POISONED)


def _raise_if_full(error: Exception) -> None:
    """Leave to :func:`needing_room` what is no candidate's fault."""
    if isinstance(error, OSError) and is_full(error):
        raise error


def _sanitized(verdicts: Sequence[Verdict]) -> RunResult | None:
    """Return the error that the tools of a sanitizer found, if they did.

    Raises:
        WorkError: If one came to no end.
    """
    for each in verdicts:
        if each.n_errors is None:
            raise WorkError(f"{each.tool} came to no end: {each.text}")
    found = [f"{each.tool}: {each.text}" for each in verdicts if not each.is_clean]
    return RunResult(error_kind="wrong_result", error_text="; ".join(found)) if found else None
