"""Check a library against another runtime and time both in turns."""

import os
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any, NamedTuple, Protocol

import numpy as np

from tuner.devices import gpus
from tuner.devices.locks import device_lock, gpu_lock
from tuner.devices.target_matching import kind_named
from tuner.engines.base import NetworkRun
from tuner.errors import RequestError
from tuner.library import manifest
from tuner.networks.base import LoadedModel
from tuner.settings import Settings
from tuner.workers.pool import Pool
from tuner.workers.pools import fresh_worker

_TIMEOUT_SECS = 600.0
# Threads of ONNX Runtime go on spinning for tens of milliseconds after a run, on the cores that
# the other runtime wants next.
_REST_SECS = 0.3
# Long enough that caches and threads are warm for nearly all of a turn.
_TURN_SECS = 0.1
_FEWEST_RUNS, _MOST_RUNS = 5, 50
# Relative to the largest output; sums of thousands of terms in another order stay below it.
TOLERANCE = 1e-3
# The runtime that runs a model as it is, by the format of the model.
PEERS = {"onnx": "onnxruntime", "pt2": "torch"}


@dataclass(frozen=True)
class Comparison:
    """What a bench found; times are medians in seconds, errors the largest of all outputs.

    ``relative_error`` is relative to the largest magnitude of the output it is in.
    """

    library_secs: float
    library_samples: tuple[float, ...]
    estimated_secs: float | None
    n_threads: int
    peer: str | None = None
    peer_secs: float | None = None
    peer_samples: tuple[float, ...] = ()
    absolute_error: float | None = None
    relative_error: float | None = None
    degenerate: bool = False

    @property
    def mean_secs(self) -> float:
        """Mean of the library's samples."""
        return mean(self.library_samples)

    @property
    def stdev_secs(self) -> float:
        """Standard deviation of the library's samples."""
        return pstdev(self.library_samples)

    @property
    def ratio(self) -> float | None:
        """Library over peer: below 1 the library is faster."""
        return self.library_secs / self.peer_secs if self.peer_secs else None

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints of it."""
        told = ("mean_secs", "stdev_secs", "ratio", "agrees")
        return {**vars(self), **{name: getattr(self, name) for name in told}}

    @property
    def agrees(self) -> bool:
        """Whether the outputs are the same within tolerance; true without a peer."""
        return self.relative_error is None or self.relative_error <= TOLERANCE


def bench_library(
    settings: Settings, folder: Path, model: LoadedModel | None, *, n_turns: int, seed: int
) -> Comparison:
    """Time a library; with a model, check its outputs and time its own runtime in turns with it.

    Each runtime has a process of its own that does nothing else, both the same number of
    threads, and they take turns, so that a slow moment of the machine hits both.

    Raises:
        RequestError: If the library is missing, damaged, or of another network than the model.
    """
    described = manifest.read(folder)
    manifest.verify(folder, described)
    settings = settings.with_engine(described.engine)
    program = described.programs[0] if model is None else _program_of(described, model)
    estimate = described.estimate(program)
    n_threads = len(os.sched_getaffinity(0))
    with (
        device_lock(settings.data_dir),
        _gpu_held(described.target),
        tempfile.TemporaryDirectory() as scratch,
        fresh_worker(settings, "bench-library") as ours,
        fresh_worker(settings, "bench-peer") as theirs,
    ):
        inputs = Path(scratch) / "inputs.npz"
        np.savez(inputs, **random_inputs(program.inputs, seed))  # type: ignore[arg-type]
        library = _LibraryRuns(ours, settings.engine, folder.absolute(), inputs)
        if model is None:
            samples, _ = _in_turns(library, None, n_turns)
            return Comparison(median(samples), samples, estimate, n_threads)
        peer = _PeerRuns(theirs, model, n_threads, inputs)
        errors = _compare_outputs(library, peer, Path(scratch))
        samples, peer_samples = _in_turns(library, peer, n_turns)
    return Comparison(
        library_secs=median(samples),
        library_samples=samples,
        estimated_secs=estimate,
        n_threads=n_threads,
        peer=peer.name,
        peer_secs=median(peer_samples),
        peer_samples=peer_samples,
        absolute_error=errors.absolute,
        relative_error=errors.relative,
        degenerate=errors.degenerate,
    )


class _Runs(Protocol):
    """Runs a network in a process of its own."""

    def __call__(self, n_runs: int, outputs: str = "") -> tuple[float, ...]:
        """Run and time, after warming up; keep the outputs in a file if one is named."""


@dataclass(frozen=True)
class _LibraryRuns:
    worker: Pool
    engine: str
    folder: Path
    inputs: Path

    def __call__(self, n_runs: int, outputs: str = "") -> tuple[float, ...]:
        request = NetworkRun(str(self.folder), str(self.inputs), outputs, n_runs)
        secs: tuple[float, ...] = self.worker.call(
            self.engine, "run_network", request, timeout_secs=_TIMEOUT_SECS
        )
        return secs


@dataclass(frozen=True)
class _PeerRuns:
    worker: Pool
    model: LoadedModel
    n_threads: int
    inputs: Path

    @property
    def name(self) -> str:
        """Module of the runtime."""
        return PEERS[self.model.file.format]

    def __call__(self, n_runs: int, outputs: str = "") -> tuple[float, ...]:
        secs: tuple[float, ...] = self.worker.call(
            f"tuner.peers.{self.name}",
            "run_model",
            self.model.file.path,
            self.n_threads,
            NetworkRun("", str(self.inputs), outputs, n_runs),
            timeout_secs=_TIMEOUT_SECS,
        )
        return secs


def _gpu_held(target: str) -> AbstractContextManager[None]:
    """Hold the GPU that a library runs on, which is the first that a process sees."""
    found = gpus.visible_gpu() if kind_named(target) == "cuda" else None
    return nullcontext() if found is None else gpu_lock(found[0].uuid)


def random_inputs(inputs: manifest.Inputs, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Draw inputs: floating-point ones uniform in [0, 1), integers 0 or 1."""
    rng = np.random.default_rng(seed)
    return {
        name: (
            rng.integers(0, 2, size=shape)
            if dtype.startswith(("int", "uint", "bool"))
            else rng.random(size=shape)
        ).astype(dtype)
        for name, (shape, dtype) in inputs.items()
    }


def _in_turns(
    library: _Runs, peer: _Runs | None, n_turns: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Time two runtimes in turns, each turn as many runs and the other one first."""
    secs = median(library(_FEWEST_RUNS))
    n_runs = min(max(round(_TURN_SECS / secs), _FEWEST_RUNS), _MOST_RUNS)
    samples: list[list[float]] = [[], []]
    for turn in range(n_turns):
        pair = [(library, samples[0]), (peer, samples[1])]
        for run, into in pair if turn % 2 == 0 else reversed(pair):
            if run is not None:
                time.sleep(_REST_SECS)
                into.extend(run(n_runs))
    return tuple(samples[0]), tuple(samples[1])


class _Errors(NamedTuple):
    """Largest errors of all outputs, and whether the outputs are constant and prove nothing."""

    absolute: float
    relative: float
    degenerate: bool


def _compare_outputs(library: _Runs, peer: _Runs, folder: Path) -> _Errors:
    """Run both once and compare; outputs match by position: the runtimes name them differently."""
    ours, theirs = str(folder / "ours.npz"), str(folder / "theirs.npz")
    library(0, ours)
    peer(0, theirs)
    absolute = relative = 0.0
    degenerate = True
    with np.load(ours) as mine, np.load(theirs) as other:
        for own_name, other_name in zip(mine.files, other.files, strict=True):
            expected = other[other_name].astype(np.float64)
            error = np.abs(mine[own_name].astype(np.float64) - expected)
            scale = float(np.abs(expected).max()) or 1.0
            worst = float(error.max()) if np.isfinite(error).all() else float("inf")
            absolute, relative = max(absolute, worst), max(relative, worst / scale)
            degenerate = degenerate and bool(expected.size > 1 and np.ptp(expected) < 1e-6 * scale)
    return _Errors(absolute, relative, degenerate)


def _program_of(described: manifest.Manifest, model: LoadedModel) -> manifest.Program:
    for program in described.programs:
        if program.network == model.sha256:
            return program
    raise RequestError(
        f"the library was built from another network ({described.model_name}); give the same "
        "model, --input and --random-weights as for tuner build"
    )
