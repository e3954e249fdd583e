"""Best records of another version or device, for subgraphs that have none of this one."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from records import imported, other_targets
from records.models import Target
from records.other_targets import BestOnTarget, RecordedTrace
from tuner.context import Context
from tuner.engines.base import TargetInfo
from tuner.jobs.preparation import Prepared

# What of a device fingerprint is the device itself, and no version.
_DEVICE = ("name", "n_cores")
# What of a target says which instructions there are: an upgrade may add and drop the rest.
_HARDWARE = ("kind", "arch", "mcpu", "mattr", "mtriple", "mabi", "mfloat-abi", "num-cores", "host")

Differences = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class StaleBest:
    """A subgraph without a record of this version, and what another version has of it.

    Attributes:
        workload: Its hash.
        workload_id: Its row.
        name: What it computes.
        weight: How often it is called.
        target_id: The target that has the record.
        device: Name of the device there.
        foreign: Whether that is another device.
        differs: What differs in fingerprint and target, there and here.
        replays: The records to measure again, the best first.
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
        """Id of the best record there."""
        return self.replays[0].record_id

    @property
    def latency(self) -> float:
        """Seconds of one call, by that record."""
        return self.replays[0].latency


@dataclass(frozen=True)
class Here:
    """What is compiled and measured for: by which engine, and a target with its row."""

    engine: str
    target: TargetInfo
    target_id: int


def stale_bests(context: Context, networks: Sequence[Prepared]) -> tuple[StaleBest, ...]:
    """Return what other versions know of subgraphs that have no best record here.

    Returns:
        Those whose calls take longest, weight times latency, first.
    """
    task_ids = [task.task_id for network in networks for task in network.tasks]
    with context.readers() as session:
        workloads = other_targets.workload_ids(session, task_ids)
        weights: Counter[int] = Counter()
        for network in networks:
            for task in network.tasks:
                weights[workloads[task.task_id]] += task.weight
        where = Here(context.settings.engine, networks[0].target, networks[0].target_id)
        return find(session, where, weights)


def find(
    session: Session,
    where: Here,
    weights: Mapping[int, int] | None = None,
    per_task: int = 1,
    *,
    foreign: bool = False,
) -> tuple[StaleBest, ...]:
    """Return which records of other versions and devices to measure again on a target.

    What logs of other tools say counts like the records of another device, though nobody compared
    what it computes; one hides the other only until it was measured.

    Of each workload the best ``per_task`` records of one other target: of the same device where
    one has any, of several the fastest. What was measured again is not among them; a trace that
    failed gives way to the next. A workload with a best record of its own needs none, unless
    that has the trace of one of them.

    Args:
        session: The transaction.
        where: What is measured on.
        weights: Calls by workload, which no other is measured; None: of all networks in the
            database, and one for what is of none of them.
        per_task: How many records of a workload, at least 1.
        foreign: Also what logs of other tools say of other targets.

    Returns:
        The workloads whose calls take longest, weight times latency, first.
    """
    related = _related(session, where, foreign=foreign)
    if not related:
        return ()
    chosen = _choose(session, where, related, weights)
    if weights is None:
        weights = _all_weights(session, where, related)
    tasks = other_targets.tasks_of_target(session, where.target_id, chosen)
    tuned = {
        best.workload_id: best.latency
        for best in other_targets.bests_of_targets(session, [where.target_id], chosen)
    }
    found = []
    for workload_id, bests in chosen.items():
        own = tuned.get(workload_id)
        for best in bests:
            other = related[best.target_id]
            replays = _to_measure(session, best, other, tasks.get(workload_id), own, per_task)
            if replays:
                weight = weights.get(workload_id, 1)
                found.append(_stale(best, replays, weight, where.target, other))
                break
    return tuple(sorted(found, key=lambda each: (-each.weight * each.latency, each.workload)))


def current_bests(
    session: Session, where: Here, weights: Mapping[int, int] | None = None, per_task: int = 1
) -> tuple[StaleBest, ...]:
    """Return the best records of the target itself, as :func:`find` does those of others."""
    wanted = None if weights is None else weights.keys()
    if weights is None:
        weights = _all_weights(session, where, _related(session, where))
    found = [
        StaleBest(
            workload=best.workload,
            workload_id=best.workload_id,
            name=best.name,
            weight=weights.get(best.workload_id, 1),
            target_id=where.target_id,
            device=str(where.target.device.get("name")),
            foreign=False,
            differs={},
            replays=tuple(other_targets.ranked(session, best.task_id, per_task)),
        )
        for best in other_targets.bests_of_targets(session, [where.target_id], wanted)
        if best.engine == where.engine
    ]
    return tuple(sorted(found, key=lambda each: (-each.weight * each.latency, each.workload)))


def _to_measure(
    session: Session,
    best: BestOnTarget,
    other: Target,
    here: int | None,
    own_secs: float | None,
    per_task: int,
) -> tuple[RecordedTrace, ...]:
    """Return what is worth measuring here, where the best takes ``own_secs`` if there is one."""
    if imported.is_logged(other):
        promises = best.latency < (math.inf if own_secs is None else own_secs)
        return _of_log(session, best.task_id, here, per_task) if promises else ()
    if per_task == 1 and own_secs is not None:
        return ()
    return _replays(session, best.task_id, here, per_task)


def _replays(
    session: Session, there: int, here: int | None, per_task: int
) -> tuple[RecordedTrace, ...]:
    """Return the records of a task that another task of the workload is to measure."""
    replays = other_targets.ranked(session, there, per_task, here)
    if here is None:
        return tuple(replays)
    traces = {replay.trace_hash for replay in replays}
    if any(best.trace_hash not in traces for best in other_targets.ranked(session, here, 1)):
        return ()
    return _unknown(session, replays, here)


def _of_log(
    session: Session, there: int, here: int | None, per_task: int
) -> tuple[RecordedTrace, ...]:
    """Return what a log has of a task and another task of the workload is to measure."""
    replays = other_targets.ranked(session, there, per_task, here, verified=False)
    return tuple(replays) if here is None else _unknown(session, replays, here)


def _unknown(
    session: Session, replays: Sequence[RecordedTrace], here: int
) -> tuple[RecordedTrace, ...]:
    known = other_targets.known_traces(session, here, {replay.trace_hash for replay in replays})
    return tuple(replay for replay in replays if replay.trace_hash not in known)


def differences(target: TargetInfo, other: Target) -> dict[str, tuple[Any, Any]]:
    """Return what differs in the fingerprint of another target and of this, and in their text."""
    here, there = dict(target.device), other.device
    found = {
        name: (there.get(name), here.get(name))
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    }
    if other.spec != target.spec:
        found["target"] = (other.spec, target.spec)
    return found


def _related(session: Session, where: Here, *, foreign: bool = False) -> dict[int, Target]:
    return {
        row.id: row
        for row in other_targets.all_targets(session)
        if row.id != where.target_id
        and (_is_related(where.target, row) or (foreign and _is_of_a_log(where.target, row)))
    }


def _is_of_a_log(target: TargetInfo, other: Target) -> bool:
    """Whether a log says it of a target that code can be made for here."""
    kinds = {str(json.loads(spec).get("kind")) for spec in (target.spec, other.spec)}
    return imported.is_logged(other) and len(kinds) == 1


def _all_weights(session: Session, where: Here, related: Mapping[int, Target]) -> Mapping[int, int]:
    """Networks may have been split for the other versions only."""
    return other_targets.workload_weights(session, [*related, where.target_id])


def _is_related(target: TargetInfo, other: Target) -> bool:
    """Whether code for another target is code for this one, but for the version that made it."""
    if other.spec == target.spec:
        return True
    upgraded = any(
        other.device.get(name) != target.device.get(name)
        for name in (other.device.keys() | target.device.keys()) - set(_DEVICE)
    )
    try:
        there, here = json.loads(other.spec), json.loads(target.spec)
        return upgraded and all(there.get(name) == here.get(name) for name in _HARDWARE)
    except (ValueError, AttributeError):
        return False


def _choose(
    session: Session,
    where: Here,
    related: Mapping[int, Target],
    workload_ids: Collection[int] | None,
) -> dict[int, list[BestOnTarget]]:
    """Choose for each workload one best record, and one of what logs tell of.

    Of this device first, then the fastest, then the last.
    """

    def order(best: BestOnTarget) -> tuple[bool, float, int]:
        return _is_foreign(where.target, related[best.target_id]), best.latency, -best.record_id

    of_logs = [row.id for row in related.values() if imported.is_logged(row)]
    chosen: dict[int, list[BestOnTarget]] = defaultdict(list)
    for known in (
        other_targets.bests_of_targets(session, related, workload_ids),
        other_targets.fastest_of_targets(session, of_logs, workload_ids),
    ):
        usable = [best for best in known if best.engine == where.engine]
        # The first of each workload is what stays.
        firsts = {best.workload_id: best for best in sorted(usable, key=order, reverse=True)}
        for workload_id, first in firsts.items():
            chosen[workload_id].append(first)
    return {each: sorted(bests, key=order) for each, bests in chosen.items()}


def _stale(
    best: BestOnTarget,
    replays: tuple[RecordedTrace, ...],
    weight: int,
    target: TargetInfo,
    other: Target,
) -> StaleBest:
    return StaleBest(
        workload=best.workload,
        workload_id=best.workload_id,
        name=best.name,
        weight=weight,
        target_id=best.target_id,
        device=str(other.device.get("name") or "an unnamed device"),
        foreign=_is_foreign(target, other),
        differs=differences(target, other),
        replays=replays,
    )


def _is_foreign(target: TargetInfo, other: Target) -> bool:
    return any(target.device.get(name) != other.device.get(name) for name in _DEVICE)
