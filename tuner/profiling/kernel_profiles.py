"""Profiles of the calls and subgraphs of a library, from the runs that timed them."""

import hashlib
import math
from collections.abc import Sequence
from statistics import median

from sqlalchemy.orm import Session

from records.tasks import WeightedTask
from tuner.devices.cpu_caches import n_cores
from tuner.engines.base import ProfiledRun, TimedCall
from tuner.library.manifest import Manifest, SubgraphEntry
from tuner.profiling.node_matching import CallGroup
from tuner.profiling.results import OTHER_KERNELS, CallProfile, KernelProfile
from tuner.profiling.verdicts import KernelFacts, NetworkFacts
from tuner.tuning.tasks.snapshot import read_states
from tuner.tuning.tasks.task_profiles import is_memory_bound, loses_weights, roof_secs
from tuner.tuning.tasks.task_state import TaskFeatures, TaskState

# Share of the trials that count as the latest ones, and the gain in them that is one.
_LATEST, _MIN_GAIN = 1 / 3, 0.02


def read_facts(session: Session, known: Sequence[WeightedTask]) -> NetworkFacts:
    """Read what the database knows about the subgraphs of a network.

    Args:
        known: Tasks of the network on the device; those that it does not know are left out.
    """
    states = read_states(session, [task.task_id for task in known])
    peaks = known[0].peaks if known else None
    in_memory = loses_weights(known, peaks)
    problem = ""
    if not known:
        problem = "the database has no task of this network on this device"
    elif peaks is None:
        problem = (
            "the peaks of this device are unknown: no job ran, or other processes used its cores"
        )
    return NetworkFacts(
        {
            task.workload_hash: _facts_of(
                task, states.get(task.task_id), weights_in_memory=in_memory
            )
            for task in known
        },
        problem,
    )


def _facts_of(
    task: WeightedTask, state: TaskState | None, *, weights_in_memory: bool
) -> KernelFacts:
    curve = TaskState([]).features() if state is None else state.features()
    return KernelFacts(
        flop=task.flop,
        n_bytes=int((task.profile or {}).get("n_bytes", 0)),
        roof_secs=roof_secs(task, weights_in_memory=weights_in_memory),
        is_memory_bound=is_memory_bound(task, weights_in_memory=weights_in_memory),
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


def profile_calls(
    described: Manifest,
    runs: Sequence[ProfiledRun],
    groups: Sequence[CallGroup],
    node_names: Sequence[str],
) -> tuple[CallProfile, ...]:
    """Return the median times of the calls of a run, and the nodes that they compute.

    Args:
        described: Manifest of the library.
        runs: Runs of one program, at least one.
        groups: Groups of calls; empty if the nodes are unknown.
        node_names: Names of the model's nodes, by number.
    """
    group_of = {call: group for group in groups for call in group.calls}
    unknown = CallGroup((), ())
    names = {subgraph.workload: subgraph.name for subgraph in described.subgraphs}
    calls = []
    for number, same in enumerate(zip(*(run.calls for run in runs), strict=True)):
        called = described.kernel_calls[same[0].call]
        group = group_of.get(number, unknown)
        ends = [_end(run.calls[number - 1]) if number else 0.0 for run in runs]
        calls.append(
            CallProfile(
                kernel=called.kernel,
                workload=called.workload,
                n_runs=called.n_runs,
                name=names.get(called.workload, called.kernel),
                start_secs=median(call.start_secs for call in same),
                secs=median(call.secs for call in same),
                gap_secs=median(
                    call.start_secs - end for call, end in zip(same, ends, strict=True)
                ),
                nodes=tuple(node_names[node] for node in group.nodes),
                with_calls=tuple(call for call in group.calls if call != number),
            )
        )
    return tuple(calls)


def _end(call: TimedCall) -> float:
    return call.start_secs + call.secs


def profile_kernels(
    described: Manifest, calls: Sequence[CallProfile], turns: Sequence[Sequence[ProfiledRun]]
) -> tuple[KernelProfile, ...]:
    """Return the profiles of the subgraphs without verdicts, the slowest first.

    Args:
        described: Manifest of the library.
        calls: Calls of a run.
    """
    entries = {subgraph.workload: subgraph for subgraph in described.subgraphs}
    run_secs = sum(call.secs + max(call.gap_secs, 0.0) for call in calls)
    kernels = []
    for workload in dict.fromkeys(call.workload for call in calls):
        numbers = [number for number, call in enumerate(calls) if call.workload == workload]
        own = [calls[number] for number in numbers]
        n, secs = sum(call.n_runs for call in own), sum(call.secs for call in own)
        entry = entries.get(workload)
        latency = None if entry is None else entry.latency
        kernels.append(
            KernelProfile(
                name=OTHER_KERNELS if entry is None else entry.name,
                workload=workload,
                n_calls=n,
                secs=secs,
                share=secs / run_secs if run_secs > 0.0 else 0.0,
                record_secs=None if latency is None else latency * n,
                n_threads=_n_threads(entry),
                variant="" if entry is None else entry.variant,
                nodes=tuple(dict.fromkeys(name for call in own for name in call.nodes)),
                turn_secs=tuple(
                    median(sum(run.calls[number].secs for number in numbers) for run in runs)
                    for runs in turns
                ),
                trace="" if entry is None else entry.trace or "",
                code="" if entry is None else _code_of(entry),
            )
        )
    return tuple(sorted(kernels, key=lambda kernel: -kernel.secs))


def _code_of(entry: SubgraphEntry) -> str:
    """Return the hash of the objects of a subgraph, whose names depend on the library."""
    return hashlib.sha256("".join(sorted(entry.objects.values())).encode()).hexdigest()


def _n_threads(entry: SubgraphEntry | None) -> int | None:
    if entry is None or entry.n_parallel is None:
        return None
    return min(entry.n_parallel, n_cores())
