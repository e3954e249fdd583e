"""Check a library against another runtime and time both in turns."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tuner.config import Settings
from tuner.device_lock import device_lock
from tuner.engines.base import NetworkRun
from tuner.errors import RequestError
from tuner.library import manifest
from tuner.networks.loaded import LoadedModel
from tuner.workers import fresh_worker

_TIMEOUT_SECS = 600.0
_RUNS_PER_TURN = 5
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
    def ratio(self) -> float | None:
        """Library over peer: below 1 the library is faster."""
        return self.library_secs / self.peer_secs if self.peer_secs else None

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
    if model is not None:
        _check_same_network(described, model)
    n_threads = len(os.sched_getaffinity(0))
    with (
        device_lock(settings.data_dir),
        tempfile.TemporaryDirectory() as scratch,
        fresh_worker(settings, "bench-library") as ours,
        fresh_worker(settings, "bench-peer") as theirs,
    ):
        inputs = Path(scratch) / "inputs.npz"
        np.savez(inputs, **random_inputs(described.inputs, seed))  # type: ignore[arg-type]
        outputs = {name: str(Path(scratch) / f"{name}.npz") for name in ("ours", "theirs")}

        def run_ours(n_runs: int, *, keep: bool) -> tuple[float, ...]:
            request = _request(folder, inputs, outputs["ours"] if keep else "", n_runs)
            secs: tuple[float, ...] = ours.call(
                settings.engine, "run_network", request, timeout_secs=_TIMEOUT_SECS
            )
            return secs

        def run_theirs(n_runs: int, *, keep: bool) -> tuple[float, ...]:
            assert model is not None
            request = _request(folder, inputs, outputs["theirs"] if keep else "", n_runs)
            secs: tuple[float, ...] = theirs.call(
                f"tuner.peers.{PEERS[model.file.format]}",
                "run_model",
                model.file.path,
                n_threads,
                request,
                timeout_secs=_TIMEOUT_SECS,
            )
            return secs

        run_ours(0, keep=True)
        if model is None:
            samples = tuple(s for _ in range(n_turns) for s in run_ours(_RUNS_PER_TURN, keep=False))
            return Comparison(median(samples), samples, described.estimated_secs, n_threads)
        run_theirs(0, keep=True)
        samples, peer_samples = _in_turns(run_ours, run_theirs, n_turns)
        absolute, relative, degenerate = _compare(outputs["ours"], outputs["theirs"])
    return Comparison(
        library_secs=median(samples),
        library_samples=samples,
        estimated_secs=described.estimated_secs,
        n_threads=n_threads,
        peer=PEERS[model.file.format],
        peer_secs=median(peer_samples),
        peer_samples=peer_samples,
        absolute_error=absolute,
        relative_error=relative,
        degenerate=degenerate,
    )


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


def _request(folder: Path, inputs: Path, outputs: str, n_runs: int) -> NetworkRun:
    return NetworkRun(str(folder.absolute()), str(inputs), outputs, n_runs)


_Run = Callable[..., tuple[float, ...]]


def _in_turns(
    run_ours: _Run, run_theirs: _Run, n_turns: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(n_turns):
        pair = [(run_ours, ours), (run_theirs, theirs)]
        for run, samples in pair if turn % 2 == 0 else reversed(pair):
            samples.extend(run(_RUNS_PER_TURN, keep=False))
    return tuple(ours), tuple(theirs)


def _compare(ours: str, theirs: str) -> tuple[float, float, bool]:
    """Return the largest absolute and relative error, and whether the outputs are constant.

    Outputs are matched by position: the runtimes name them differently.
    """
    absolute = relative = 0.0
    degenerate = True
    with np.load(ours) as mine, np.load(theirs) as peer:
        for own_name, peer_name in zip(mine.files, peer.files, strict=True):
            expected = peer[peer_name].astype(np.float64)
            error = np.abs(mine[own_name].astype(np.float64) - expected)
            scale = float(np.abs(expected).max()) or 1.0
            worst = float(error.max()) if np.isfinite(error).all() else float("inf")
            absolute, relative = max(absolute, worst), max(relative, worst / scale)
            degenerate = degenerate and bool(expected.size > 1 and np.ptp(expected) < 1e-6 * scale)
    return absolute, relative, degenerate


def _check_same_network(described: manifest.Manifest, model: LoadedModel) -> None:
    if described.network != model.sha256:
        raise RequestError(
            f"the library was built from another network ({described.model_name}); give the same "
            "model, --input and --random-weights as for tuner build"
        )
