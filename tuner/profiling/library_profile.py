"""Profile of a library: the time of every kernel inside the running network."""

import math
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from records import targets, tasks
from records.tasks import WeightedTask
from tuner.compile.bench_inputs import choose_program, draw_inputs, read_inputs
from tuner.compile.bench_model import BenchModel, load_bench_model
from tuner.compile.bench_runtimes import open_peers, peer_model_of
from tuner.context import Context
from tuner.devices.locks import device_lock
from tuner.devices.target_matching import kind_named
from tuner.engines.base import NetworkRun, ProfiledRun, TimedCall
from tuner.errors import RequestError
from tuner.library import manifest
from tuner.library.arrays import write_arrays
from tuner.peers.base import PeerNode
from tuner.profiling.peer_profile import match
from tuner.profiling.results import CallProfile, KernelProfile, LibraryProfile
from tuner.profiling.verdicts import KernelFacts, judge
from tuner.settings import Settings
from tuner.tuning.snapshot import read_states
from tuner.tuning.task_profiles import is_memory_bound, roof_secs
from tuner.tuning.task_state import TaskFeatures, TaskState
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

_TIMEOUT_SECS = 600.0
_RUNS_IN_TURN = 10
# Share of the trials that count as the latest ones, and the gain in them that is one.
_LATEST, _MIN_GAIN = 1 / 3, 0.02
OTHER_KERNELS = "other kernels"


@dataclass(frozen=True)
class ProfileRequest:
    """A library to profile.

    Attributes:
        shapes: Shapes of inputs, to choose a program of several; by default the first.
        arrays: A ``.npz`` file with an array for each input; None to draw them.
        n_runs: Number of profiled runs, at least 1.
        seed: Seed of the inputs that are drawn.
        model: Model that the library was built from; None if a zoo network, or without peers.
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
    """Run a library and time every kernel call inside it.

    Raises:
        RequestError: If the library is missing or damaged, has no timers or runs on a GPU,
            or the inputs or peers cannot be used.
    """
    described = manifest.read(folder)
    manifest.verify(folder, described)
    if not described.kernel_calls:
        raise RequestError(
            f"the kernels of {folder} cannot be timed: it was built by engine "
            f"{described.engine.split('.')[2]}, or on a machine without a C compiler"
        )
    if kind_named(described.target) == "cuda":
        raise RequestError("the kernels of a GPU cannot be timed from the host")
    arrays = None if request.arrays is None else read_inputs(request.arrays)
    program = choose_program(described, request.shapes, arrays)
    settings = context.settings.with_engine(described.engine)
    with (
        tempfile.TemporaryDirectory() as scratch,
        device_lock(settings.data_dir),
        fresh_worker(settings, "profile") as worker,
    ):
        file = Path(scratch) / "inputs.npz"
        model = _load_model(settings, described, program, request, Path(scratch))
        ranges = model.ranges if model else {}
        write_arrays(file, arrays or draw_inputs(program.inputs, request.seed, ranges))
        plain, profiled = _run(settings.engine, worker, folder, file, request.n_runs)
        nodes = _profile_peers(settings, request, model, file) if model else []
    secs = median(run.secs for run in profiled)
    calls, facts = _calls(described, profiled), _facts(context, described, program)
    names = [(call.name, call.workload) for call in calls]
    flops = {workload: fact.flop for workload, fact in facts.items()}
    return LibraryProfile(
        model_name=described.model_name,
        n_runs=len(profiled),
        median_secs=secs,
        plain_secs=median(plain),
        between_secs=median(run.secs - sum(call.secs for call in run.calls) for run in profiled),
        kernels=_kernels(described, profiled, facts, secs),
        calls=calls,
        peers=tuple(match(name, version, names, flops, own) for name, version, own in nodes),
    )


def _load_model(
    settings: Settings,
    described: manifest.Manifest,
    program: manifest.Program,
    request: ProfileRequest,
    folder: Path,
) -> BenchModel | None:
    if not request.against:
        return None
    return load_bench_model(
        settings, described, program, request.model, request.random_weights, folder
    )


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
                nodes = peer.worker.call(*call, timeout_secs=_TIMEOUT_SECS)
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


def _facts(
    context: Context, described: manifest.Manifest, program: manifest.Program
) -> dict[str, KernelFacts]:
    """Read what the database knows about the subgraphs of a program, by workload."""
    fingerprint = targets.fingerprint(described.target, dict(described.device))
    with context.readers() as session:
        known = tasks.tasks_of_target(session, fingerprint, described.engine, program.calls)
        states = read_states(session, [task.task_id for task in known])
    return {task.workload_hash: _facts_of(task, states.get(task.task_id)) for task in known}


def _facts_of(task: WeightedTask, state: TaskState | None) -> KernelFacts:
    curve = TaskState([]).features() if state is None else state.features()
    return KernelFacts(
        flop=task.flop,
        n_bytes=int((task.profile or {}).get("n_bytes", 0)),
        roof_secs=roof_secs(task),
        is_memory_bound=is_memory_bound(task),
        n_trials=curve.n_trials,
        is_improving=_is_improving(curve),
    )


def _is_improving(features: TaskFeatures) -> bool:
    """Return whether the latest third of the trials lowered the latency by more than 2 %."""
    if not features.alive or not math.isfinite(features.best_secs):
        return False
    trials = 0
    for secs, n_trials in zip(features.curve, features.trials, strict=True):
        trials += n_trials
        if trials >= features.n_trials * (1 - _LATEST):
            return secs > features.best_secs * (1 + _MIN_GAIN)
    return False


def _calls(described: manifest.Manifest, runs: Sequence[ProfiledRun]) -> tuple[CallProfile, ...]:
    names = {subgraph.workload: subgraph.name for subgraph in described.subgraphs}
    calls = []
    for number, same in enumerate(zip(*(run.calls for run in runs), strict=True)):
        called = described.kernel_calls[same[0].call]
        ends = [_end(run.calls[number - 1]) if number else 0.0 for run in runs]
        calls.append(
            CallProfile(
                kernel=called.kernel,
                workload=called.workload,
                name=names.get(called.workload, called.kernel),
                start_secs=median(call.start_secs for call in same),
                secs=median(call.secs for call in same),
                gap_secs=median(
                    call.start_secs - end for call, end in zip(same, ends, strict=True)
                ),
            )
        )
    return tuple(calls)


def _end(call: TimedCall) -> float:
    return call.start_secs + call.secs


def _kernels(
    described: manifest.Manifest,
    runs: Sequence[ProfiledRun],
    facts: Mapping[str, KernelFacts],
    run_secs: float,
) -> tuple[KernelProfile, ...]:
    entries = {subgraph.workload: subgraph for subgraph in described.subgraphs}
    secs_of_runs: dict[str, list[float]] = {}
    for run in runs:
        for workload, secs in _secs_by_workload(described, run).items():
            secs_of_runs.setdefault(workload, []).append(secs)
    n_calls = Counter(described.kernel_calls[call.call].workload for call in runs[0].calls)
    kernels = []
    for workload, n in n_calls.items():
        secs_of_all = median(secs_of_runs[workload])
        entry, fact = entries.get(workload), facts.get(workload, KernelFacts())
        latency = None if entry is None else entry.latency
        each = secs_of_all / n
        kernels.append(
            KernelProfile(
                name=OTHER_KERNELS if entry is None else entry.name,
                workload=workload,
                n_calls=n,
                secs=secs_of_all,
                share=secs_of_all / run_secs,
                record_secs=None if latency is None else latency * n,
                gflops=fact.flop / each / 1e9 if each > 0.0 else 0.0,
                roof_share=fact.roof_secs / each if fact.roof_secs and each > 0.0 else None,
                n_trials=fact.n_trials,
                verdict=judge(entry, fact, each),
            )
        )
    return tuple(sorted(kernels, key=lambda kernel: -kernel.secs))


def _secs_by_workload(described: manifest.Manifest, run: ProfiledRun) -> dict[str, float]:
    secs: dict[str, float] = {}
    for call in run.calls:
        workload = described.kernel_calls[call.call].workload
        secs[workload] = secs.get(workload, 0.0) + call.secs
    return secs
