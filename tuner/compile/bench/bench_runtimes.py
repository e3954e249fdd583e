"""The runtimes of a benchmark, each in a process of its own, and their turns."""

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol

from tuner.compile.bench.bench_model import BenchModel
from tuner.compile.bench.comparison import Samples, SkippedPeer
from tuner.devices.cpu_caches import n_cores
from tuner.engines.base import NetworkRun
from tuner.engines.runtime.clock_readings import MAX_SLOWDOWN
from tuner.errors import RequestError, TunerError
from tuner.library.arrays import Array, read_arrays
from tuner.peers.base import Device, PeerInfo, PeerModel
from tuner.peers.catalogue import PEERS, PeerPackage
from tuner.settings import Settings
from tuner.workers.base import CallTimeout
from tuner.workers.confinement.sandbox_paths import model_access
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

_LOG = logging.getLogger(__name__)
ALL = "all"
_TIMEOUT_SECS = 600.0
# Threads of ONNX Runtime spin for tens of milliseconds after a run, on the cores that the other
# runtimes use next.
_REST_SECS = 0.3
# Caches and threads are warm for nearly all of a turn.
_TURN_SECS = 0.1
_MIN_RUNS, _MAX_RUNS = 5, 50
# Runs of a model in float64 with other roundings, and the time of all such runs.
_MAX_ROUNDINGS = 8
_FLOAT64_SECS = 300.0


class Runs(Protocol):
    """A network that runs in a process of its own."""

    def __call__(self, n_runs: int, outputs: str = "") -> Samples:
        """Run the network and return the samples, seconds.

        Args:
            n_runs: Runs after a warm-up.
            outputs: File for the outputs; empty for none.
        """


@dataclass(frozen=True)
class LibraryRuns:
    """A library that runs.

    Attributes:
        clock_target: CPU target whose clock kernel is timed before and after each turn, over
            periods as long as a run; empty for none.
        turn_secs: Median sample of each turn, seconds.
        clock_runs: Median sample of the turns in which the clock kept its speed, in runs of the
            clock kernel.
        has_tail: True if operators run after its programs, which are timed with them.
    """

    worker: Pool
    engine: str
    folder: Path
    inputs: Path
    clock_target: str = ""
    turn_secs: list[float] = field(default_factory=list)
    clock_runs: list[float] = field(default_factory=list)
    has_tail: bool = False

    def __call__(self, n_runs: int, outputs: str = "") -> Samples:
        """Run the library; see :class:`Runs`."""
        if not n_runs or not self.clock_target:
            return self._run(n_runs, outputs)
        before = self._read_clock(self.turn_secs[-1]) if self.turn_secs else None
        secs = self._run(n_runs, outputs)
        self.turn_secs.append(median(secs))
        after = self._read_clock(self.turn_secs[-1])
        # Readings that differ say nothing about the time between them.
        if before and after and max(before, after) <= MAX_SLOWDOWN * min(before, after):
            self.clock_runs.append(self.turn_secs[-1] / fmean((before, after)))
        return secs

    def _run(self, n_runs: int, outputs: str) -> Samples:
        request = NetworkRun(str(self.folder), str(self.inputs), outputs, n_runs)
        call: tuple[Any, ...] = (self.engine, "run_network", request)
        if self.has_tail:
            call = ("tuner.library.runs", "run_library", *vars(request).values())
        secs: Samples = self.worker.call(
            *call, timeout_secs=_TIMEOUT_SECS, returns=tuple[float, ...]
        )
        return secs

    def launch_note(self) -> str:
        """Return how its kernels are launched on a GPU, for people; empty on a CPU."""
        call = (self.engine, "launch_note", str(self.folder), str(self.inputs))
        note: str = self.worker.call(*call, timeout_secs=_TIMEOUT_SECS, returns=str)
        return note

    def _read_clock(self, period_secs: float) -> float | None:
        secs: float | None = self.worker.call(
            self.engine,
            "clock_secs",
            self.clock_target,
            period_secs,
            timeout_secs=_TIMEOUT_SECS,
            returns=float | None,
        )
        return secs


@dataclass(frozen=True)
class PeerRuns:
    """A peer that has loaded a model and run it once.

    Attributes:
        info: Its version and device.
        outputs: Outputs of its first run, in order.
    """

    worker: Pool
    package: PeerPackage
    model: PeerModel
    inputs: Path
    info: PeerInfo
    outputs: tuple[Array, ...] = ()

    def __call__(self, n_runs: int, outputs: str = "") -> Samples:
        """Run the model; see :class:`Runs`."""
        request = NetworkRun("", str(self.inputs), outputs, n_runs)
        secs: Samples = self.worker.call(
            self.package.module,
            "run_model",
            self.model,
            request,
            timeout_secs=_TIMEOUT_SECS,
            returns=tuple[float, ...],
        )
        return secs


class Float64Runs:
    """Outputs of a model in float64, exact at first, then with other roundings.

    They are computed as they are read, in a process of their own, and kept for the next peer. None
    follow once the model cannot be computed, or time is up.

    Args:
        settings: Settings of the process.
        peer: A peer with the model and the inputs.
        precision: Coarsest precision that the model computes in.
        stack: Closes the process.
    """

    def __init__(
        self, settings: Settings, peer: PeerRuns, precision: str, stack: ExitStack
    ) -> None:
        self._settings = settings
        self._model = peer.model
        self._precision = precision
        self._inputs = peer.inputs
        self._stack = stack
        self._worker: Pool | None = None
        self._known: list[tuple[Array, ...]] = []
        # Nothing is wider than float64.
        self._n_runs = 1 if precision == "float64" else 1 + _MAX_ROUNDINGS
        self._secs_left = _FLOAT64_SECS

    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        """Yield the outputs of each run, in order."""
        for seed in itertools.count():
            if seed == len(self._known) and not self._run(seed):
                return
            yield self._known[seed]

    def _run(self, seed: int) -> bool:
        """Compute the outputs with roundings of a seed; return False if there are none."""
        if seed >= self._n_runs or self._secs_left <= 0.0:
            return False
        if self._worker is None:
            access = model_access(self._model.path)
            self._worker = self._stack.enter_context(
                fresh_worker(self._settings, "bench-float64", access)
            )
        file = self._inputs.with_name("float64.npz")
        request = NetworkRun("", str(self._inputs), str(file), 0)
        started = time.monotonic()
        try:
            self._worker.call(
                "tuner.peers.exact.float64",
                "run_float64",
                self._model,
                request,
                self._precision,
                seed,
                timeout_secs=self._secs_left,
                returns=type(None),
            )
        except (TunerError, CallTimeout) as error:
            _LOG.info("float64 does not decide: %s", error or "it takes too long")
            self._secs_left = 0.0
            return False
        self._secs_left -= time.monotonic() - started
        self._known.append(tuple(read_arrays(file).values()))
        return True


def peer_model_of(model: BenchModel, device: Device) -> PeerModel:
    """Describe the model of a library to peers, which get as many threads as a library."""
    original = model.original
    return PeerModel(
        path=original.path,
        inputs=dict(original.inputs),
        symbols=dict(original.symbols),
        n_threads=n_cores(),
        device=device,
    )


def open_peers(
    settings: Settings,
    against: Sequence[str],
    model: PeerModel,
    model_format: str,
    inputs: Path,
    stack: ExitStack,
) -> tuple[list[PeerRuns], list[SkippedPeer]]:
    """Load and run a model in each requested peer; ``all`` skips peers that cannot.

    ``all`` does not mention peers of GPUs beside a library of a CPU.

    Args:
        settings: Settings of the processes.
        against: Names of peers, or ``all``; empty for the first that runs the format.
        stack: Closes the processes.

    Raises:
        RequestError: If a peer that was named is not installed or cannot run the model, or no
            peer is left.
    """
    opened: list[PeerRuns] = []
    skipped: list[SkippedPeer] = []
    for package in _packages(against, model_format, model.device):
        try:
            opened.append(_open(settings, package, model, inputs, stack))
        except TunerError as error:
            if ALL not in against:
                raise
            fix = "" if package.is_installed() else package.fix
            skipped.append(SkippedPeer(package.name, "not installed" if fix else str(error), fix))
    if not opened:
        shown = "; ".join(f"{peer.name}: {peer.reason} {peer.fix}".strip() for peer in skipped)
        raise RequestError(f"no peer can run the model ({shown})", field="against")
    return opened, skipped


def _open(
    settings: Settings, package: PeerPackage, model: PeerModel, inputs: Path, stack: ExitStack
) -> PeerRuns:
    if not package.is_installed():
        raise RequestError(f"{package.name} is not installed: {package.fix}", field="against")
    access = replace(model_access(model.path), pins_threads=True)
    worker = stack.enter_context(fresh_worker(settings, f"bench-{package.name}", access))
    try:
        info = worker.call(
            package.module, "load_model", model, timeout_secs=_TIMEOUT_SECS, returns=PeerInfo
        )
        runs = PeerRuns(worker, package, model, inputs, info)
        return replace(runs, outputs=run_once(runs, inputs.with_name(f"{package.name}.npz")))
    except CallTimeout as error:
        raise RequestError(
            f"{package.name} takes more than {_TIMEOUT_SECS:.0f} s to load and run the model",
            field="against",
        ) from error


def _packages(against: Sequence[str], model_format: str, device: Device) -> list[PeerPackage]:
    """Return the requested peers; without a request, the first that runs the format.

    Raises:
        RequestError: If a peer is unknown or runs no models of this format.
    """
    able = [peer for peer in PEERS if model_format in peer.formats]
    if ALL in against:
        return [peer for peer in able if device == "cuda" or not peer.needs_gpu]
    if not against:
        return able[:1]
    by_name = {peer.name: peer for peer in able}
    for name in against:
        if name not in by_name:
            raise RequestError(
                f"{name} does not run .{model_format} models; "
                f"choose {' or '.join(by_name)}, or all",
                field="against",
            )
    return [by_name[name] for name in dict.fromkeys(against)]


def run_once(runs: Runs, file: Path) -> tuple[Array, ...]:
    """Run a runtime once and return its outputs, in order."""
    runs(0, str(file))
    return tuple(read_arrays(file).values())


def in_turns(runtimes: Sequence[Runs], n_turns: int) -> list[Samples]:
    """Time runtimes in turns; return the samples of each, seconds.

    Every turn of a runtime has the same number of runs, and the order alternates.
    """
    turns = [round(_TURN_SECS / median(run(_MIN_RUNS))) for run in runtimes]
    n_runs = [min(max(n, _MIN_RUNS), _MAX_RUNS) for n in turns]
    samples: list[list[float]] = [[] for _ in runtimes]
    order = list(range(len(runtimes)))
    for turn in range(n_turns):
        for index in order if turn % 2 == 0 else reversed(order):
            time.sleep(_REST_SECS)
            samples[index].extend(runtimes[index](n_runs[index]))
    return [tuple(own) for own in samples]
