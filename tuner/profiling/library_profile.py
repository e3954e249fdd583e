"""Profile of a library: the time of every kernel inside the running network."""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from records import targets
from records.tuning import profiles
from tuner.compile.bench.bench_model import (
    BenchModel,
    choose_program,
    draw_inputs,
    load_bench_model,
    read_inputs,
    without_constants,
)
from tuner.compile.bench.bench_runtimes import open_peers, peer_model_of
from tuner.compile.bench.benchmark import gpu_locked
from tuner.context import Context
from tuner.devices.cpu_caches import n_cores
from tuner.devices.locks import device_lock
from tuner.devices.target_matching import kind_named
from tuner.engines.base import NetworkRun, ObservedCall, ProfiledRun
from tuner.errors import RequestError, TunerError
from tuner.jobs.preparation import network_key
from tuner.library import manifest
from tuner.library.arrays import write_arrays
from tuner.peers.base import Device, ObservedGraph, PeerNode
from tuner.peers.catalogue import PEERS
from tuner.process_folder import shared_folder
from tuner.profiling.kernel_profiles import profile_calls, profile_kernels, read_facts
from tuner.profiling.node_matching import CallGroup, group_calls
from tuner.profiling.peer_profile import match
from tuner.profiling.results import LibraryProfile, as_json
from tuner.settings import Settings
from tuner.workers.confinement.sandbox_paths import model_access, timing_access
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

_TIMEOUT_SECS = 600.0
_RUNS_IN_TURN = 10
# The runtime whose values the kernels are recognised by.
_OBSERVER = next(peer for peer in PEERS if peer.name == "onnxruntime")


@dataclass(frozen=True)
class ProfileRequest:
    """A library to profile.

    Attributes:
        shapes: Shapes of inputs, to choose a program of several; by default the first.
        arrays: A ``.npz`` file with an array for each input; None to draw them.
        n_runs: Number of profiled runs, at least 1.
        seed: Seed of the inputs that are drawn.
        model: Model that the library was built from, for the nodes of the kernels and for peers;
            None if a zoo network, or to do without them.
        against: Names of peers to profile too, or ``all``.
        random_weights: Seed of random weights; None for what the library was built with.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    arrays: Path | None = None
    n_runs: int = 30
    seed: int = 0
    model: str | None = None
    against: tuple[str, ...] = ()
    random_weights: int | None = None


def profile_library(context: Context, folder: Path, request: ProfileRequest) -> LibraryProfile:
    """Run a library and time every kernel call inside it; pages of its jobs show the result.

    Raises:
        RequestError: If the library is missing or damaged, has no timers, or the inputs or peers
            cannot be used.
    """
    described = manifest.read(folder)
    manifest.verify(folder, described)
    if not described.kernel_calls:
        raise RequestError(
            f"the kernels of {folder} cannot be timed: it was built by engine "
            f"{described.engine.split('.')[2]}, or on a machine without a C compiler"
        )
    device: Device = "cuda" if kind_named(described.target) == "cuda" else "cpu"
    if device == "cuda" and request.against:
        raise RequestError(
            "other runtimes are profiled on a CPU only, but the library is for a GPU",
            field="against",
        )
    arrays = None if request.arrays is None else read_inputs(request.arrays)
    shapes, arrays = without_constants(described, request.shapes, arrays)
    program = choose_program(described, shapes, arrays)
    settings = context.settings.with_engine(described.engine)
    with (
        tempfile.TemporaryDirectory(dir=shared_folder()) as scratch,
        device_lock(settings.data_dir),
        gpu_locked(device),
        fresh_worker(settings, "profile", timing_access(folder)) as worker,
    ):
        file = Path(scratch) / "inputs.npz"
        model = _load_model(settings, described, program, request, Path(scratch))
        ranges = model.ranges if model else {}
        write_arrays(file, arrays or draw_inputs(program.inputs, request.seed, ranges))
        plain, profiled = _run(settings.engine, worker, folder, file, request.n_runs)
        nodes = (
            _match_nodes(settings, worker, folder, model, file)
            if device == "cpu"
            else _MatchedNodes(problem="nodes are known for libraries of a CPU only")
        )
        peers = _profile_peers(settings, request, model, file) if model else []
    calls = profile_calls(described, profiled, nodes.groups, nodes.names)
    call_secs = [call.secs for call in calls]
    facts = read_facts(context, described, program)
    profile = LibraryProfile(
        model_name=described.model_name,
        n_runs=len(profiled),
        median_secs=median(run.secs for run in profiled),
        plain_secs=median(plain),
        between_secs=median(run.secs - sum(call.secs for call in run.calls) for run in profiled),
        kernels=profile_kernels(described, program, calls, facts),
        calls=calls,
        n_threads=n_cores(),
        peers=tuple(
            match(name, version, nodes.groups, call_secs, own) for name, version, own in peers
        ),
        nodes_problem=nodes.problem,
        tail=described.tail.note if described.tail else "",
    )
    fingerprint = targets.fingerprint(described.target, dict(described.device))
    network = network_key(program.network, described.engine, described.pipeline)
    with context.sessions.begin() as session:
        profiles.store_profile(session, network, fingerprint, as_json(profile))
    return profile


@dataclass(frozen=True)
class _MatchedNodes:
    """The nodes of a model that the calls of a library compute, or why they are unknown."""

    groups: tuple[CallGroup, ...] = ()
    names: tuple[str, ...] = ()
    problem: str = ""


def _load_model(
    settings: Settings,
    described: manifest.Manifest,
    program: manifest.Program,
    request: ProfileRequest,
    folder: Path,
) -> BenchModel | None:
    is_zoo = described.source.name.startswith("zoo:")
    if not request.against and request.model is None and not is_zoo:
        return None
    return load_bench_model(
        settings, described, program, request.model, request.random_weights, folder
    )


def _match_nodes(
    settings: Settings, library: Pool, folder: Path, model: BenchModel | None, inputs: Path
) -> _MatchedNodes:
    """Run library and model on the same inputs, and find the nodes that each call computes."""
    if model is None:
        return _MatchedNodes(problem="give the model to see the nodes of each kernel")
    if model.original.format not in _OBSERVER.formats:
        return _MatchedNodes(problem="nodes are known for ONNX models only")
    if not _OBSERVER.is_installed():
        return _MatchedNodes(problem=f"nodes need {_OBSERVER.name}: {_OBSERVER.fix}")
    run = NetworkRun(str(folder.absolute()), str(inputs), "", 1)
    try:
        calls: tuple[ObservedCall, ...] = library.call(
            settings.engine, "observe_network", run, timeout_secs=_TIMEOUT_SECS
        )
        peer_model = peer_model_of(model, "cpu")
        with fresh_worker(settings, "profile-nodes", model_access(peer_model.path)) as worker:
            graph: ObservedGraph = worker.call(
                _OBSERVER.module,
                "observe_graph",
                peer_model,
                run,
                timeout_secs=_TIMEOUT_SECS,
                returns=ObservedGraph,
            )
    except TunerError as error:
        return _MatchedNodes(problem=str(error))
    return _MatchedNodes(group_calls(calls, graph), tuple(node.name for node in graph.nodes))


def _profile_peers(
    settings: Settings, request: ProfileRequest, model: BenchModel, inputs: Path
) -> list[tuple[str, str, tuple[PeerNode, ...]]]:
    """Profile the peers, each in a process of its own; return name, version and nodes of each."""
    profiles = []
    with ExitStack() as stack:
        peer_model = peer_model_of(model, "cpu")
        names = request.against
        peers, _ = open_peers(settings, names, peer_model, model.original.format, inputs, stack)
        for peer in peers:
            run = NetworkRun("", str(inputs), "", request.n_runs)
            call = (peer.package.module, "profile_model", peer_model, run)
            if peer.package.profiles:
                nodes = peer.worker.call(
                    *call, timeout_secs=_TIMEOUT_SECS, returns=tuple[PeerNode, ...]
                )
                profiles.append((peer.package.name, peer.info.version, nodes))
    return profiles


def _run(
    engine: str, worker: Pool, folder: Path, inputs: Path, n_runs: int
) -> tuple[list[float], list[ProfiledRun]]:
    """Run a library without and with timers, in turns."""
    plain: list[float] = []
    profiled: list[ProfiledRun] = []
    while len(profiled) < n_runs:
        n = min(n_runs - len(profiled), _RUNS_IN_TURN)
        run = NetworkRun(str(folder.absolute()), str(inputs), "", n)
        plain += worker.call(engine, "run_network", run, timeout_secs=_TIMEOUT_SECS)
        profiled += worker.call(engine, "profile_network", run, timeout_secs=_TIMEOUT_SECS)
    return plain, profiled
