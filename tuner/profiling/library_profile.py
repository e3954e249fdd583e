"""Profile of a library: the time of every kernel inside the running network."""

import platform
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median

from records import targets, tasks
from records.tuning import profiles
from tuner.compile.bench.bench_model import (
    BenchModel,
    Called,
    choose_program,
    draw_inputs,
    load_bench_model,
    read_inputs,
    require_comparable,
    without_constants,
)
from tuner.compile.bench.bench_runtimes import open_peers, peer_model_of
from tuner.compile.bench.benchmark import gpu_locked
from tuner.context import Context
from tuner.devices import gpus
from tuner.devices.cpu_caches import n_cores
from tuner.devices.locks import device_lock
from tuner.devices.target_matching import kind_named
from tuner.engines.base import NetworkRun, ObservedCall, ProfiledRun
from tuner.errors import RequestError, TunerError
from tuner.files.process_folder import shared_folder
from tuner.jobs.preparation import network_key
from tuner.library import manifest
from tuner.library.arrays import Array, write_arrays
from tuner.peers.base import Device, ObservedGraph, PeerNode
from tuner.peers.catalogue import PEERS
from tuner.profiling.kernel_profiles import profile_calls, profile_kernels, read_facts
from tuner.profiling.node_matching import CallGroup, group_calls
from tuner.profiling.peer_profile import match
from tuner.profiling.results import LibraryProfile, as_json
from tuner.profiling.verdicts import tune_command
from tuner.settings import Settings
from tuner.workers.confinement.sandbox_paths import model_access, timing_access
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

#: Number of profiled runs by default.
N_RUNS = 40
_TIMEOUT_SECS = 600.0
#: Runs of a turn; eight turns, as by default, have an interval that contains the median.
RUNS_IN_TURN = 5
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
        nodes: False to do without the nodes of the kernels.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    arrays: Path | None = None
    n_runs: int = N_RUNS
    seed: int = 0
    model: str | None = None
    against: tuple[str, ...] = ()
    random_weights: int | None = None
    nodes: bool = True


def profile_library(context: Context, folder: Path, request: ProfileRequest) -> LibraryProfile:
    """Run a library and time every kernel call inside it; pages of its jobs show the result.

    Raises:
        RequestError: If the library is missing or damaged, has no timers, or the inputs or peers
            cannot be used.
    """
    (profile,) = profile_in_turns(context, (folder,), request)
    with context.sessions.begin() as session:
        row = profiles.find(session, profile.network, _fingerprint(profile))
        if row is not None:
            profiles.store_profile(session, *row, as_json(profile))
    return profile


def profile_in_turns(
    context: Context,
    folders: Sequence[Path],
    request: ProfileRequest,
    beside: Called | None = None,
) -> list[LibraryProfile]:
    """Profile libraries in turns, while no other process measures on the device.

    Raises:
        RequestError: As :func:`profile_library`, or if the libraries, and what is compared with
            them, take other inputs or are of devices of two kinds.
    """
    opened = [_open(context.settings, folder, request) for folder in folders]
    called = [Called(each.folder, each.described.target, each.program.inputs) for each in opened]
    if beside is not None:
        called.insert(0, beside)
    for each in called[:-1]:
        require_comparable(each, called[-1])
    with device_lock(context.settings.data_dir), gpu_locked(_device_of(opened[-1].described)):
        return _time(context, opened, request)


def time_library(
    context: Context, folder: Path, request: ProfileRequest, environ: Mapping[str, str]
) -> LibraryProfile:
    """Profile a library on a device that the caller holds.

    Args:
        context: Settings and database.
        request: Inputs and number of runs.
        environ: Environment variables that show the device to a process.

    Raises:
        RequestError: As :func:`profile_library`.
    """
    (profile,) = _time(context, [_open(context.settings, folder, request)], request, environ)
    return profile


def _time(
    context: Context,
    opened: "Sequence[_Opened]",
    request: ProfileRequest,
    environ: Mapping[str, str] | None = None,
) -> list[LibraryProfile]:
    """Profile libraries in turns; nodes and peers are of the last."""
    last = opened[-1]
    device = _device_of(last.described)
    if device == "cuda" and request.against:
        raise RequestError(
            "other runtimes are profiled on a CPU only, but the library is for a GPU",
            field="against",
        )
    with (
        tempfile.TemporaryDirectory(dir=shared_folder()) as scratch,
        ExitStack() as stack,
    ):
        model = _load_model(last, request, Path(scratch))
        ranges = model.ranges if model else {}
        runs = []
        for number, library in enumerate(opened):
            file = Path(scratch) / f"inputs-{number}.npz"
            inputs = library.arrays or draw_inputs(library.program.inputs, request.seed, ranges)
            write_arrays(file, inputs)
            access = timing_access(library.folder)
            worker = stack.enter_context(
                fresh_worker(library.settings, f"profile-{number}", access, environ=environ)
            )
            runs.append((library, worker, file))
        turns = _run(runs, request.n_runs)
        nodes = (
            _match_nodes(*runs[-1], model)
            if device == "cpu"
            else _MatchedNodes(problem="nodes are known for libraries of a CPU only")
        )
        peers = _profile_peers(last.settings, request, model, file) if model else []
    unknown = _MatchedNodes(problem="nodes are matched for the last library only")
    profiles_of = [
        _profile(context, library, own, nodes if library is last else unknown, request)
        for library, own in zip(opened, turns, strict=True)
    ]
    call_secs = [call.secs for call in profiles_of[-1].calls]
    matched = tuple(
        match(name, version, nodes.groups, call_secs, own) for name, version, own in peers
    )
    return [*profiles_of[:-1], replace(profiles_of[-1], peers=matched)]


@dataclass(frozen=True)
class _Opened:
    """A library that can be timed, and the settings with its engine."""

    settings: Settings
    folder: Path
    described: manifest.Manifest
    program: manifest.Program
    arrays: Mapping[str, Array] | None


@dataclass(frozen=True)
class _Turn:
    """Runs of a library without timers, seconds, and runs with timers."""

    plain: Sequence[float]
    profiled: Sequence[ProfiledRun]


def _device_of(described: manifest.Manifest) -> Device:
    return "cuda" if kind_named(described.target) == "cuda" else "cpu"


def _open(settings: Settings, folder: Path, request: ProfileRequest) -> _Opened:
    described = manifest.read(folder)
    manifest.verify(folder, described)
    if not described.kernel_calls:
        raise RequestError(
            f"the kernels of {folder} cannot be timed: it was built by engine "
            f"{described.engine.split('.')[2]}, or on a machine without a C compiler"
        )
    arrays = None if request.arrays is None else read_inputs(request.arrays)
    shapes, arrays = without_constants(described, request.shapes, arrays)
    program = choose_program(described, shapes, arrays)
    return _Opened(settings.with_engine(described.engine), folder, described, program, arrays)


def _profile(
    context: Context,
    library: _Opened,
    turns: Sequence[_Turn],
    nodes: "_MatchedNodes",
    request: ProfileRequest,
) -> LibraryProfile:
    described, program = library.described, library.program
    profiled = [run for turn in turns for run in turn.profiled]
    calls = profile_calls(described, profiled, nodes.groups, nodes.names)
    versions = {"tuner": version("subgraph-tuner"), "linux": platform.release()}
    if _device_of(described) == "cuda" and (gpu := gpus.visible_gpu()):
        versions["driver"] = gpu[0].driver
    profile = LibraryProfile(
        model_name=described.model_name,
        n_runs=len(profiled),
        median_secs=median(run.secs for run in profiled),
        plain_secs=median(secs for turn in turns for secs in turn.plain),
        between_secs=median(run.secs - sum(call.secs for call in run.calls) for run in profiled),
        kernels=profile_kernels(described, calls, [turn.profiled for turn in turns]),
        calls=calls,
        n_threads=n_cores(),
        inputs=program.inputs,
        nodes_problem=nodes.problem,
        tail=described.tail.note if described.tail else "",
        network=network_key(program.network, described.engine, described.pipeline),
        target=described.target,
        device=described.device,
        compiler=described.compiler,
        versions=versions,
        turn_secs=tuple(median(turn.plain) for turn in turns),
    )
    with context.readers() as session:
        known = tasks.tasks_of_target(
            session, _fingerprint(profile), described.engine, program.calls
        )
        facts = read_facts(session, known)
    return profile.judged(facts, tune_command(described, program, request.model or ""))


def _fingerprint(profile: LibraryProfile) -> str:
    return targets.fingerprint(profile.target, dict(profile.device))


@dataclass(frozen=True)
class _MatchedNodes:
    """The nodes of a model that the calls of a library compute, or why they are unknown."""

    groups: tuple[CallGroup, ...] = ()
    names: tuple[str, ...] = ()
    problem: str = ""


def _load_model(library: _Opened, request: ProfileRequest, folder: Path) -> BenchModel | None:
    is_zoo = library.described.source.name.startswith("zoo:")
    if not request.nodes or (not request.against and request.model is None and not is_zoo):
        return None
    return load_bench_model(
        library.settings,
        library.described,
        library.program,
        request.model,
        request.random_weights,
        folder,
    )


def _match_nodes(
    library: _Opened, worker: Pool, inputs: Path, model: BenchModel | None
) -> _MatchedNodes:
    """Run library and model on the same inputs, and find the nodes that each call computes."""
    if model is None:
        return _MatchedNodes(problem="give the model to see the nodes of each kernel")
    if model.original.format not in _OBSERVER.formats:
        return _MatchedNodes(problem="nodes are known for ONNX models only")
    if not _OBSERVER.is_installed():
        return _MatchedNodes(problem=f"nodes need {_OBSERVER.name}: {_OBSERVER.fix}")
    settings = library.settings
    run = NetworkRun(str(library.folder.absolute()), str(inputs), "", 1)
    try:
        calls: tuple[ObservedCall, ...] = worker.call(
            settings.engine, "observe_network", run, timeout_secs=_TIMEOUT_SECS
        )
        peer_model = peer_model_of(model, "cpu")
        with fresh_worker(settings, "profile-nodes", model_access(peer_model.path)) as observer:
            graph: ObservedGraph = observer.call(
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


def _run(runs: Sequence[tuple[_Opened, Pool, Path]], n_runs: int) -> list[list[_Turn]]:
    """Run libraries in turns, each without and with timers; return the turns of each."""
    turns: list[list[_Turn]] = [[] for _ in runs]
    for start in range(0, n_runs, RUNS_IN_TURN):
        n = min(n_runs - start, RUNS_IN_TURN)
        for own, (library, worker, inputs) in zip(turns, runs, strict=True):
            run = NetworkRun(str(library.folder.absolute()), str(inputs), "", n)
            plain, profiled = (
                worker.call(library.settings.engine, function, run, timeout_secs=_TIMEOUT_SECS)
                for function in ("run_network", "profile_network")
            )
            own.append(_Turn(plain, profiled))
    return turns
