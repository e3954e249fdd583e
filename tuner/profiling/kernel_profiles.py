"""Profiles of the calls and subgraphs of a library, from the runs that timed them."""

import math
from collections.abc import Mapping, Sequence
from statistics import median

from records import targets, tasks
from records.tasks import WeightedTask
from tuner.context import Context
from tuner.devices.cpu_caches import n_cores
from tuner.engines.base import ProfiledRun, TimedCall
from tuner.library.manifest import Manifest, Program, SubgraphEntry
from tuner.profiling.node_matching import CallGroup
from tuner.profiling.results import CallProfile, KernelProfile
from tuner.profiling.verdicts import KernelFacts, judge, tune_command
from tuner.tuning.tasks.snapshot import read_states
from tuner.tuning.tasks.task_profiles import is_memory_bound, loses_weights, roof_secs
from tuner.tuning.tasks.task_state import TaskFeatures, TaskState

# Share of the trials that count as the latest ones, and the gain in them that is one.
_LATEST, _MIN_GAIN = 1 / 3, 0.02
OTHER_KERNELS = "other kernels"


def read_facts(context: Context, described: Manifest, program: Program) -> dict[str, KernelFacts]:
    """Read what the database knows about the subgraphs of a program, by workload."""
    fingerprint = targets.fingerprint(described.target, dict(described.device))
    with context.readers() as session:
        known = tasks.tasks_of_target(session, fingerprint, described.engine, program.calls)
        states = read_states(session, [task.task_id for task in known])
    in_memory = bool(known) and loses_weights(known, known[0].peaks)
    return {
        task.workload_hash: _facts_of(task, states.get(task.task_id), weights_in_memory=in_memory)
        for task in known
    }


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
    described: Manifest,
    program: Program,
    calls: Sequence[CallProfile],
    facts: Mapping[str, KernelFacts],
) -> tuple[KernelProfile, ...]:
    """Return the profiles of the subgraphs, the slowest first.

    Args:
        described: Manifest of the library.
        program: Its program that ran.
        calls: Calls of a run.
        facts: Facts about subgraphs, by workload.
    """
    entries = {subgraph.workload: subgraph for subgraph in described.subgraphs}
    run_secs = sum(call.secs + max(call.gap_secs, 0.0) for call in calls)
    tune = tune_command(described, program)
    kernels = []
    for workload in dict.fromkeys(call.workload for call in calls):
        own = [call for call in calls if call.workload == workload]
        n, secs = sum(call.n_runs for call in own), sum(call.secs for call in own)
        entry, fact = entries.get(workload), facts.get(workload, KernelFacts())
        latency = None if entry is None else entry.latency
        each = secs / n
        kernels.append(
            KernelProfile(
                name=OTHER_KERNELS if entry is None else entry.name,
                workload=workload,
                n_calls=n,
                secs=secs,
                share=secs / run_secs if run_secs > 0.0 else 0.0,
                record_secs=None if latency is None else latency * n,
                flop=fact.flop,
                n_bytes=fact.n_bytes,
                n_threads=_n_threads(entry),
                variant="" if entry is None else entry.variant,
                nodes=tuple(dict.fromkeys(name for call in own for name in call.nodes)),
                gflops=fact.flop / each / 1e9 if each > 0.0 else 0.0,
                roof_share=fact.roof_secs / each if fact.roof_secs and each > 0.0 else None,
                n_trials=fact.n_trials,
                verdict=judge(entry, fact, each, tune),
            )
        )
    return tuple(sorted(kernels, key=lambda kernel: -kernel.secs))


def _n_threads(entry: SubgraphEntry | None) -> int | None:
    if entry is None or entry.n_parallel is None:
        return None
    return min(entry.n_parallel, n_cores())
