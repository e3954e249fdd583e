"""Best records of other versions and devices, for subgraphs without one of this target."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from records.logs import imported, other_targets
from records.logs.other_targets import BestOnTarget, RecordedTrace
from records.models import Target
from records.targets import device_name
from tuner.context import Context
from tuner.engines.base import TargetInfo
from tuner.jobs.preparation import Prepared
from tuner.jobs.target_relations import (
    Differences,
    differences,
    is_foreign,
    is_of_log,
    is_related,
)


@dataclass(frozen=True)
class StaleBest:
    """A subgraph without a best record of this target, and the records of another target.

    Attributes:
        workload: Hash of the workload.
        workload_id: Row of the workload.
        name: Name of the workload, for people.
        weight: Calls of the workload in the networks.
        target_id: Row of the target that has the records.
        device: Name of that target's device.
        foreign: True if that is another device.
        differs: Differences of fingerprint and target; each value there and here.
        replays: Records to measure again, the fastest first.
    """

    workload: str
    workload_id: int
    name: str
    weight: int
    target_id: int
    device: str
    foreign: bool
    differs: Differences
    replays: tuple[RecordedTrace, ...]

    @property
    def record(self) -> int:
        """Id of the fastest of the records."""
        return self.replays[0].record_id

    @property
    def latency(self) -> float:
        """Latency of one call by that record, seconds."""
        return self.replays[0].latency


@dataclass(frozen=True)
class EngineTarget:
    """An engine, and a target with its row."""

    engine: str
    target: TargetInfo
    target_id: int


def stale_bests(context: Context, networks: Sequence[Prepared]) -> tuple[StaleBest, ...]:
    """Find records of other versions for the subgraphs of networks that have no best record.

    Returns:
        Subgraphs in falling order of calls times latency.
    """
    task_ids = [task.task_id for network in networks for task in network.tasks]
    with context.readers() as session:
        workloads = other_targets.workload_ids(session, task_ids)
        weights: Counter[int] = Counter()
        for network in networks:
            for task in network.tasks:
                weights[workloads[task.task_id]] += task.weight
        own = EngineTarget(context.settings.engine, networks[0].target, networks[0].target_id)
        return find(session, own, weights)


def find(
    session: Session,
    own: EngineTarget,
    weights: Mapping[int, int] | None = None,
    per_task: int = 1,
    *,
    foreign: bool = False,
) -> tuple[StaleBest, ...]:
    """Find the records of other versions and devices that are worth measuring on a target.

    Each workload gets the best ``per_task`` records of one other target: preferably of the same
    device, then the fastest. Records that were measured again already are left out; a trace that
    failed gives way to the next one. A workload with a best record on the target needs none,
    unless that record has the trace of one of them.

    Imported logs count as records of another device, although their outputs were never verified.
    Claims of another tuner are measured for subgraphs of networks that were split here only. A
    workload that has both kinds gets the second one once the first was measured.

    Args:
        own: Engine and target to measure with.
        weights: Calls by workload; other workloads are left out. None for all workloads in the
            database, with one call for those that belong to no network.
        per_task: Number of records per workload, at least 1.
        foreign: True to include imported logs for other targets.

    Returns:
        Workloads in falling order of calls times latency.
    """
    related = _related(session, own, foreign=foreign)
    if not related:
        return ()
    chosen = _choose(session, own, related, weights)
    if weights is None:
        weights = _all_weights(session, own, related)
    tasks = other_targets.tasks_of_target(session, own.target_id, chosen)
    tuned = {
        best.workload_id: best.latency
        for best in other_targets.bests_of_targets(session, [own.target_id], chosen)
    }
    stale = []
    for workload_id, bests in chosen.items():
        own_secs = tuned.get(workload_id)
        for best in bests:
            other = related[best.target_id]
            if imported.is_claimed(other) and workload_id not in weights:
                continue  # its IR comes from a log as well
            replays = _to_measure(session, best, other, tasks.get(workload_id), own_secs, per_task)
            if replays:
                weight = weights.get(workload_id, 1)
                stale.append(
                    StaleBest(
                        workload=best.workload,
                        workload_id=best.workload_id,
                        name=best.name,
                        weight=weight,
                        target_id=best.target_id,
                        device=device_name(other.spec, other.device),
                        foreign=is_foreign(own.target, other),
                        differs=differences(own.target, other),
                        replays=replays,
                    )
                )
                break
    return tuple(sorted(stale, key=_order))


def current_bests(
    session: Session, own: EngineTarget, weights: Mapping[int, int] | None = None, per_task: int = 1
) -> tuple[StaleBest, ...]:
    """Return the best records of the target itself in the form of :func:`find`."""
    workload_ids = None if weights is None else weights.keys()
    if weights is None:
        weights = _all_weights(session, own, _related(session, own))
    bests = [
        StaleBest(
            workload=best.workload,
            workload_id=best.workload_id,
            name=best.name,
            weight=weights.get(best.workload_id, 1),
            target_id=own.target_id,
            device=device_name(own.target.spec, own.target.device),
            foreign=False,
            differs={},
            replays=tuple(other_targets.ranked(session, best.task_id, per_task)),
        )
        for best in other_targets.bests_of_targets(session, [own.target_id], workload_ids)
        if best.engine == own.engine
    ]
    return tuple(sorted(bests, key=_order))


def _order(best: StaleBest) -> tuple[float, str]:
    return -best.weight * best.latency, best.workload


def _to_measure(
    session: Session,
    best: BestOnTarget,
    other: Target,
    here: int | None,
    own_secs: float | None,
    per_task: int,
) -> tuple[RecordedTrace, ...]:
    """Return the records of another target's task that are worth measuring on this target.

    Args:
        here: Task of the same workload on this target; None if it has none.
        own_secs: Latency of the best record of ``here``, seconds; None without one.
    """
    if imported.is_logged(other):
        is_faster = best.latency < (math.inf if own_secs is None else own_secs)
        return _of_log(session, best.task_id, here, per_task) if is_faster else ()
    if per_task == 1 and own_secs is not None:
        return ()
    replays = other_targets.ranked(session, best.task_id, per_task, here)
    if here is None:
        return tuple(replays)
    traces = {replay.trace_hash for replay in replays}
    if any(best.trace_hash not in traces for best in other_targets.ranked(session, here, 1)):
        return ()
    return _unknown(session, replays, here)


def _of_log(
    session: Session, there: int, here: int | None, per_task: int
) -> tuple[RecordedTrace, ...]:
    """Return the log entries of one task that another task of the workload should measure."""
    replays = other_targets.ranked(session, there, per_task, here, verified=False)
    return tuple(replays) if here is None else _unknown(session, replays, here)


def _unknown(
    session: Session, replays: Sequence[RecordedTrace], here: int
) -> tuple[RecordedTrace, ...]:
    known = other_targets.known_traces(session, here, {replay.trace_hash for replay in replays})
    return tuple(replay for replay in replays if replay.trace_hash not in known)


def _related(session: Session, own: EngineTarget, *, foreign: bool = False) -> dict[int, Target]:
    return {
        row.id: row
        for row in other_targets.all_targets(session)
        if row.id != own.target_id
        and (is_related(own.target, row) or (foreign and is_of_log(own.target, row)))
    }


def _all_weights(
    session: Session, own: EngineTarget, related: Mapping[int, Target]
) -> Mapping[int, int]:
    # Networks may have been split for the other versions only.
    return other_targets.workload_weights(session, [*related, own.target_id])


def _choose(
    session: Session,
    own: EngineTarget,
    related: Mapping[int, Target],
    workload_ids: Collection[int] | None,
) -> dict[int, list[BestOnTarget]]:
    """Choose for each workload one best record and one log entry.

    Records of the same device come first, then the fastest, then the newest.
    """

    def order(best: BestOnTarget) -> tuple[bool, float, int]:
        return is_foreign(own.target, related[best.target_id]), best.latency, -best.record_id

    of_logs = [row.id for row in related.values() if imported.is_logged(row)]
    chosen: dict[int, list[BestOnTarget]] = defaultdict(list)
    for candidates in (
        other_targets.bests_of_targets(session, related, workload_ids),
        other_targets.fastest_of_targets(session, of_logs, workload_ids),
    ):
        usable = [best for best in candidates if best.engine == own.engine]
        # In reverse, so that the first of each workload is the one that stays.
        firsts = {best.workload_id: best for best in sorted(usable, key=order, reverse=True)}
        for workload_id, first in firsts.items():
            chosen[workload_id].append(first)
    return {workload_id: sorted(bests, key=order) for workload_id, bests in chosen.items()}
