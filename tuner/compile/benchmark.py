"""Timing of a library, and comparison with a peer in turns."""

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
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

_TIMEOUT_SECS = 600.0
# Threads of ONNX Runtime spin for tens of milliseconds after a run, on the cores that the other
# runtime uses next.
_REST_SECS = 0.3
# Caches and threads are warm for nearly all of a turn.
_TURN_SECS = 0.1
_MIN_RUNS, _MAX_RUNS = 5, 50
# Relative to the largest output; reordering sums of thousands of terms stays below it.
TOLERANCE = 1e-3
# Peer that runs the model itself, by the format of the model.
PEERS = {"onnx": "onnxruntime", "pt2": "torch"}


@dataclass(frozen=True)
class Comparison:
    """Latency of a library and, with a peer, its errors and the latency of the peer.

    Attributes:
        library_secs: Median latency of the library.
        library_samples: Samples of the library, seconds.
        estimated_secs: Latency according to the records; None if one is missing.
        n_threads: Threads of both runtimes.
        peer: Module of the peer; None without one.
        peer_secs: Median latency of the peer.
        peer_samples: Samples of the peer, seconds.
        absolute_error: Largest absolute error of all outputs.
        relative_error: Largest error relative to the largest magnitude of its output.
        degenerate: True if the outputs are constant, so that their agreement proves little.
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
        """Latency of the library over that of the peer; None without a peer."""
        return self.library_secs / self.peer_secs if self.peer_secs else None

    @property
    def agrees(self) -> bool:
        """True if the outputs are equal within the tolerance, or there is no peer."""
        return self.relative_error is None or self.relative_error <= TOLERANCE


def bench_library(
    settings: Settings, folder: Path, model: LoadedModel | None, *, n_turns: int, seed: int
) -> Comparison:
    """Time a library; with a model, compare its outputs and latency with those of a peer.

    Each runtime has a process of its own and the same number of threads. They take turns, so that
    a slow moment of the machine affects both.

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
        _gpu_locked(described.target),
        tempfile.TemporaryDirectory() as scratch,
        fresh_worker(settings, "bench-library") as library_worker,
        fresh_worker(settings, "bench-peer") as peer_worker,
    ):
        inputs = Path(scratch) / "inputs.npz"
        np.savez(inputs, **random_inputs(program.inputs, seed))  # type: ignore[arg-type]
        library = _LibraryRuns(library_worker, settings.engine, folder.absolute(), inputs)
        if model is None:
            samples, _ = _in_turns(library, None, n_turns)
            return Comparison(median(samples), samples, estimate, n_threads)
        peer = _PeerRuns(peer_worker, model, n_threads, inputs)
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
    """A network that runs in a process of its own."""

    def __call__(self, n_runs: int, outputs: str = "") -> tuple[float, ...]:
        """Run the network and return the samples, seconds.

        Args:
            n_runs: Runs after a warm-up.
            outputs: File for the outputs; empty for none.
        """


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
        """Module of the peer."""
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


def _gpu_locked(target: str) -> AbstractContextManager[None]:
    """Lock the GPU that a library runs on, the first that a process sees."""
    visible = gpus.visible_gpu() if kind_named(target) == "cuda" else None
    return nullcontext() if visible is None else gpu_lock(visible[0].uuid)


def random_inputs(inputs: manifest.Inputs, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Draw inputs: floats uniform in [0, 1), integers and booleans 0 or 1."""
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
    """Time two runtimes in turns; return their samples, seconds.

    Every turn has the same number of runs, and the order alternates.
    """
    secs = median(library(_MIN_RUNS))
    n_runs = min(max(round(_TURN_SECS / secs), _MIN_RUNS), _MAX_RUNS)
    samples: list[list[float]] = [[], []]
    for turn in range(n_turns):
        pair = [(library, samples[0]), (peer, samples[1])]
        for run, run_samples in pair if turn % 2 == 0 else reversed(pair):
            if run is not None:
                time.sleep(_REST_SECS)
                run_samples.extend(run(n_runs))
    return tuple(samples[0]), tuple(samples[1])


class _Errors(NamedTuple):
    """Largest errors of all outputs; ``degenerate`` if all outputs are constant."""

    absolute: float
    relative: float
    degenerate: bool


def _compare_outputs(library: _Runs, peer: _Runs, folder: Path) -> _Errors:
    """Run both once and compare outputs by position, as the runtimes name them differently."""
    library_file, peer_file = str(folder / "library.npz"), str(folder / "peer.npz")
    library(0, library_file)
    peer(0, peer_file)
    absolute = relative = 0.0
    degenerate = True
    with np.load(library_file) as actual_arrays, np.load(peer_file) as expected_arrays:
        for name, peer_name in zip(actual_arrays.files, expected_arrays.files, strict=True):
            expected = expected_arrays[peer_name].astype(np.float64)
            error = np.abs(actual_arrays[name].astype(np.float64) - expected)
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
        f"the library was built from another network ({described.model_name}); give the model, "
        "the input shapes and the random weights that it was built with"
    )
