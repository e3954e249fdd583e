"""Timing of a library, and comparison with peers in turns."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tuner.compile.bench.agreement import OutputCheck, OutputPair, decide
from tuner.compile.bench.bench_model import (
    BenchModel,
    choose_run,
    draw_inputs,
    load_bench_model,
    padded,
    read_inputs,
    without_constants,
)
from tuner.compile.bench.bench_runtimes import (
    Float64Runs,
    LibraryRuns,
    PeerRuns,
    in_turns,
    open_peers,
    peer_model_of,
    run_once,
)
from tuner.compile.bench.comparison import Comparison, PeerResult, Samples, SkippedPeer, UsedInput
from tuner.devices import gpus
from tuner.devices.cpu_caches import n_cores
from tuner.devices.locks import device_lock, gpu_lock
from tuner.devices.target_matching import kind_named
from tuner.engines.runtime import clock_kernel
from tuner.errors import RequestError
from tuner.files.process_folder import shared_folder
from tuner.library import manifest
from tuner.library.arrays import Array, write_arrays
from tuner.networks.base import ModelFacts
from tuner.peers.base import Device
from tuner.settings import Settings
from tuner.workers.confinement.sandbox_paths import timing_access
from tuner.workers.factory import fresh_worker


@dataclass(frozen=True)
class BenchRequest:
    """A library to time, and what to compare it with.

    Attributes:
        model: Model that the library was built from; None to compare with nothing, or if the
            library was built from a zoo network, which it names.
        against: Names of peers, or ``all``; empty for the first that runs the model, if a model
            is given.
        shapes: Shapes of inputs, to choose a program of several; by default the first.
        random_weights: Seed of random weights; None for what the library was built with.
        arrays: An array for each input, or a ``.npz`` file of them; None to draw them.
        seed: Seed of the inputs that are drawn.
    """

    model: str | None = None
    against: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    random_weights: int | None = None
    arrays: Path | Mapping[str, Array] | None = None
    n_turns: int = 10
    seed: int = 0

    @property
    def compares(self) -> bool:
        """True if there is something to compare the library with."""
        return self.model is not None or bool(self.against)


def bench_library(settings: Settings, folder: Path, request: BenchRequest) -> Comparison:
    """Time a library; with peers, compare its outputs and its latency with theirs.

    Each runtime has a process of its own and the same number of threads. They take turns, so that
    a slow moment of the machine affects all of them.

    Raises:
        RequestError: If the library is missing, damaged, or of another network than the model, or
            the inputs or peers cannot be used.
    """
    described = manifest.read(folder)
    manifest.verify(folder, described)
    settings = settings.with_engine(described.engine)
    arrays = read_inputs(request.arrays) if isinstance(request.arrays, Path) else request.arrays
    if arrays is not None:
        arrays = {name: np.asarray(array) for name, array in arrays.items()}
    shapes, arrays = without_constants(described, request.shapes, arrays)
    program, called = choose_run(described, shapes, arrays)
    device: Device = "cuda" if kind_named(described.target) == "cuda" else "cpu"
    with tempfile.TemporaryDirectory(dir=shared_folder()) as scratch:
        with (
            device_lock(settings.data_dir),
            gpu_locked(device),
            fresh_worker(settings, "bench-library", timing_access(folder)) as worker,
            ExitStack() as stack,
        ):
            model = _load_model(
                settings, described, replace(program, inputs=called), request, Path(scratch)
            )
            inputs, used = _inputs(called, request, arrays, model)
            file, padded_file = Path(scratch) / "inputs.npz", Path(scratch) / "padded.npz"
            write_arrays(file, inputs)
            write_arrays(padded_file, padded(described, inputs))
            peers: list[PeerRuns] = []
            skipped: list[SkippedPeer] = []
            if model is not None:
                peer_model = peer_model_of(model, device)
                against, form = request.against, model.original.format
                peers, skipped = open_peers(settings, against, peer_model, form, file, stack)
            clock_target = described.target if device == "cpu" and described.clock_secs else ""
            library = LibraryRuns(
                worker,
                settings.engine,
                folder.absolute(),
                padded_file,
                clock_target,
                has_tail=described.tail is not None,
            )
            outputs = run_once(library, Path(scratch) / "library.npz") if peers else ()
            outputs = _cut(described, called, outputs)
            for peer in peers:
                if len(outputs) != len(peer.outputs):
                    name, number = peer.package.name, len(peer.outputs)
                    raise RequestError(
                        f"the library has {len(outputs)} outputs, and {name} {number}"
                    )
            library_samples, *peer_samples = in_turns([library, *peers], request.n_turns)
            launch = library.launch_note() if device == "cuda" and not library.has_tail else ""
        checks: list[tuple[OutputCheck, ...]] = []
        # Runs in float64 take minutes, and need no device.
        with ExitStack() as checking:
            if model and peers:
                exact = Float64Runs(settings, peers[0], model.facts.precision, checking)
                checks = [
                    _check_outputs(described, outputs, peer, model.facts, exact) for peer in peers
                ]
    return Comparison(
        library_samples=library_samples,
        estimated_secs=described.estimate(program),
        clock=_clock(described, library, median(library_samples)),
        n_threads=n_cores(),
        device=device,
        inputs=used,
        model=model.original.description if model else "",
        precision=model.facts.precision if model else "",
        peers=tuple(
            _result(library_samples, samples, peer, check)
            for peer, samples, check in zip(peers, peer_samples, checks, strict=True)
        ),
        skipped=tuple(skipped),
        tail=described.tail.note if described.tail else "",
        launch=launch,
    )


def _clock(described: manifest.Manifest, library: LibraryRuns, library_secs: float) -> float | None:
    """Return the speed of the device now, relative to that which the records refer to.

    It is that of the turns whose readings agree, and None if those of no turn do.
    """
    if not library.clock_target or described.clock_kernel != clock_kernel.NAME:
        return 1.0
    if described.clock_secs is None or not library.clock_runs:
        return None
    return median(library.clock_runs) * described.clock_secs / library_secs


def _result(
    library_samples: Samples, samples: Samples, peer: PeerRuns, outputs: tuple[OutputCheck, ...]
) -> PeerResult:
    return PeerResult(
        name=peer.package.name,
        version=peer.info.version,
        device=peer.info.device,
        samples=samples,
        outputs=outputs,
        ratio=median(library_samples) / median(samples),
        note=peer.info.note,
    )


def _load_model(
    settings: Settings,
    described: manifest.Manifest,
    program: manifest.Program,
    request: BenchRequest,
    folder: Path,
) -> BenchModel | None:
    if not request.compares:
        return None
    return load_bench_model(
        settings, described, program, request.model, request.random_weights, folder
    )


def gpu_locked(device: Device) -> AbstractContextManager[None]:
    """Lock the GPU that a library runs on, the first that a process sees."""
    visible = gpus.visible_gpu() if device == "cuda" else None
    return nullcontext() if visible is None else gpu_lock(visible[0].uuid)


def _cut(
    described: manifest.Manifest, called: manifest.Inputs, outputs: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Cut the outputs of padded inputs."""
    if described.buckets is None or not outputs:
        return outputs
    sizes = described.buckets.sizes_of({name: shape for name, (shape, _) in called.items()})
    by_name = dict(zip(described.outputs, outputs, strict=True))
    return tuple(described.buckets.cut(by_name, sizes).values())


def _inputs(
    called: manifest.Inputs,
    request: BenchRequest,
    arrays: Mapping[str, Array] | None,
    model: BenchModel | None,
) -> tuple[dict[str, Array], dict[str, UsedInput]]:
    """Return the inputs, and their description for people."""
    ranges = model.ranges if model else {}
    if arrays is None:
        arrays = draw_inputs(called, request.seed, ranges)
        shown = {name: _shown(name, array, ranges) for name, array in arrays.items()}
    else:
        origin = request.arrays.name if isinstance(request.arrays, Path) else "given"
        shown = dict.fromkeys(arrays, origin)
    used = {name: UsedInput(shape, dtype, shown[name]) for name, (shape, dtype) in called.items()}
    return dict(arrays), used


def _shown(name: str, array: Array, ranges: Mapping[str, Any]) -> str:
    if array.dtype.kind not in "iub":
        return "uniform in [0, 1)"
    if name not in ranges:
        return "0 or 1"
    values = ranges[name]
    numbers = str(values.low) if values.low == values.high else f"{values.low} to {values.high}"
    return f"{numbers} ({values.reason})"


def _check_outputs(
    described: manifest.Manifest,
    outputs: Sequence[Array],
    peer: PeerRuns,
    facts: ModelFacts,
    exact: Float64Runs,
) -> tuple[OutputCheck, ...]:
    """Compare outputs by position, as torch does not name them."""
    pairs = zip(described.outputs, outputs, peer.outputs, strict=True)
    return decide(
        [
            OutputPair(name, actual, expected, facts.precision, position in facts.sigmoids)
            for position, (name, actual, expected) in enumerate(pairs)
        ],
        exact,
    )
