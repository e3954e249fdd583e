"""The executor of one machine: builder processes, and the runners of its devices."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tuner.devices.runners.base import Fleet, Runner
from tuner.devices.runners.local import LocalRunner
from tuner.engines.base import BuildRequest, BuildResult
from tuner.executors.remote import wire
from tuner.files.process_tags import is_left
from tuner.settings import Settings
from tuner.workers.base import Call, FutureCall
from tuner.workers.confinement.memory import builder_count
from tuner.workers.confinement.sandbox_paths import scratch_folder
from tuner.workers.factory import builder_pool
from tuner.workers.utilisation import UtilisationMeter

if TYPE_CHECKING:
    from tuner.executors.remote.fleet import RemoteFleet
    from tuner.workers.pool import Pool

_TRAINING_MODULE = "tuner.cost_models.training"


@dataclass(frozen=True, eq=False)
class _BuildCall(FutureCall):
    """A build; its folder is removed if it fails, or if its caller stops waiting."""

    out: str

    def result(self) -> Any:
        """Block until the build has ended."""
        return self._kept(super().result)

    async def _wait(self) -> Any:
        try:
            await super()._wait()
        except asyncio.CancelledError:
            self.future.add_done_callback(self._remove)
            raise
        except Exception:
            pass  # raised below
        return self._kept(self.future.result)

    def _kept(self, result_of: Callable[[], Any]) -> Any:
        """Return the result; the folder of a failed build is removed."""
        try:
            result = result_of()
        except BaseException:
            self._remove()
            raise
        if not isinstance(result, BuildResult) or result.error_text:
            self._remove()
        return result

    def _remove(self, _: Future[Any] | None = None) -> None:
        shutil.rmtree(self.out, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class _RemoteBuildCall(_BuildCall):
    """A build of another machine, whose artifact is written here."""

    def _kept(self, result_of: Callable[[], Any]) -> Any:
        return super()._kept(lambda: wire.unpack_build(result_of(), Path(self.out)))


class LocalExecutor:
    """Builders and runners of this machine for one engine; an :class:`Executor`.

    Args:
        settings: Engine, data directory and number of builders.
        meter: Meter of the work of the builders and of this machine's CPU.
        runners: Runners of devices; by default one of this machine's CPU, unless there is a fleet.
        fleet: Remote devices, which come and go.
        farm: Remote builders, which build candidates beside those of this machine.
    """

    def __init__(
        self,
        settings: Settings,
        meter: UtilisationMeter | None = None,
        runners: Sequence[Runner] | None = None,
        fleet: Fleet | None = None,
        farm: "RemoteFleet | None" = None,
    ) -> None:
        self._artifacts = scratch_folder(settings.data_dir)
        _empty(self._artifacts)
        remove_left_scratch(settings.data_dir)
        self._engine = settings.engine
        self._meter = meter or UtilisationMeter()
        self._n_own = builder_count(settings)
        self.builders: Pool = builder_pool(settings, self._n_own)
        self._own_builds: set[Future[Any]] = set()
        self._farm = farm
        if runners is None and fleet is None:
            runners = [LocalRunner(settings, "local", shares_cores=True, meter=self._meter)]
        self._runners: Sequence[Runner] = runners or ()
        self._fleet = fleet

    @property
    def n_builders(self) -> int:
        """Number of builders of this machine, and of the remote ones that are there now."""
        return self._n_own + (self._farm.n_builders if self._farm else 0)

    @property
    def runners(self) -> Sequence[Runner]:
        """Runners of this machine's devices, and of the remote ones that are there now."""
        return self._runners if self._fleet is None else [*self._runners, *self._fleet.runners]

    def warm_up(self) -> list[Call]:
        """Start the builders and the CPU's runner; the process of a GPU starts when it is used."""
        calls: list[Call] = [
            self.builders.submit(self._engine, "describe_target", "llvm")
            for _ in range(self._n_own)
        ]
        cpu_runners = [runner for runner in self._runners if runner.shares_cores]
        return [*calls, *(runner.describe("llvm") for runner in cpu_runners)]

    def submit(self, function: str, *args: Any, timeout_secs: float) -> FutureCall:
        """Call a function of the engine in a builder."""
        call = self.builders.submit(self._engine, function, *args, timeout_secs=timeout_secs)
        return self._meter.watch(call)

    def train(self, *args: Any, timeout_secs: float) -> FutureCall:
        """Train a cost model in a builder."""
        call = self.builders.submit(
            _TRAINING_MODULE, "train", *args, timeout_secs=timeout_secs, returns=bytes
        )
        return self._meter.watch(call)

    def build(self, request: BuildRequest, *, timeout_secs: float) -> FutureCall:
        """Build a candidate in a builder; its artifact is a folder.

        Raises:
            OSError: If the disk has no room for the folder.
        """
        self._artifacts.mkdir(parents=True, exist_ok=True)
        out = tempfile.mkdtemp(dir=self._artifacts)
        load = len(self._own_builds) / self._n_own
        sent = self._farm.build(request, timeout_secs, load) if self._farm else None
        if sent is not None:
            return _RemoteBuildCall(sent.future, out)
        call = self.submit("build", replace(request, out=out), timeout_secs=timeout_secs)
        self._own_builds.add(call.future)
        call.future.add_done_callback(self._own_builds.discard)
        return _BuildCall(call.future, out)

    def discard(self, artifact: str) -> None:
        """Remove the folder of an artifact."""
        shutil.rmtree(artifact, ignore_errors=True)

    def close(self) -> None:
        """Kill all workers, and remove the artifacts that are left."""
        self.builders.close()
        for runner in self._runners:
            runner.close()
        if self._fleet is not None:
            self._fleet.close()
        _empty(self._artifacts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def remove_left_scratch(data_dir: Path) -> None:
    """Remove the artifacts of processes that were killed."""
    for left in filter(is_left, scratch_folder(data_dir).parent.glob("*")):
        shutil.rmtree(left, ignore_errors=True)


def _empty(folder: Path) -> None:
    """Remove what is in a folder, but not the folder: workers may reach that one, not another."""
    with suppress(OSError):
        for path in folder.iterdir():
            shutil.rmtree(path, ignore_errors=True)
