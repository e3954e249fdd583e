"""Import of finals: what the graphs of whole networks say of candidates, as final times of records.

The fastest alone of a workload keeps its time. A candidate that beat it inside the networks gets
that time less its gain for one call, so that the sum of the latencies is that of the network.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from records import bests, measure_records
from records.models import BestRecord, MeasureRecord
from tuner.packs.registry import RegisteredPack
from tuner.packs.runner.finals import MIN_GAIN

# Calls of a kernel in a network, at most.
_MAX_CALLS = 1 << 31

Row = Mapping[str, Any]


@dataclass(frozen=True)
class NetworkTimes:
    """Times of a network in its graph, seconds.

    Attributes:
        before: With the kernels that a library has without these results.
        after: With the best candidates.
        estimate: Sum of the times of its kernels, each alone.
        is_stable: True if repeated runs gave the same bytes.
        difference: Distance of its outputs from those before, relative to them; None if a number of
            one alone is infinite or NaN.
    """

    network: str
    before: float
    after: float
    estimate: float
    n_kernels: int
    is_stable: bool
    difference: float | None


def network_times(rows: Sequence[Row]) -> list[NetworkTimes]:
    """Return the times of the networks among rows of results; rows of another form are left out."""
    return [
        NetworkTimes(
            network=str(row.get("network")),
            before=statistics.median(row["before"]),
            after=statistics.median(row["after"]),
            estimate=float(row["estimate"]),
            n_kernels=int(row["n_kernels"]),
            is_stable=bool(row["is_stable"]),
            difference=row["difference"],
        )
        for row in rows
        if _are_samples(row.get("before")) and _are_samples(row.get("after"))
    ]


def store_winners(
    session: Session, pack: RegisteredPack, task_ids: Mapping[str, int], rows: Sequence[Row]
) -> int:
    """Make the winners of finals the best records of their tasks, unless others are faster.

    Args:
        task_ids: Task of each workload.
        rows: Rows of the results.

    Returns:
        Number of workloads whose best record is another than the times alone choose.
    """
    races: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.get("workload") in task_ids and _is_race(row):
            races[row["workload"]].append(row)
    return sum(
        _store_winner(session, pack, task_ids[workload], workload, each)
        for workload, each in races.items()
    )


def _store_winner(
    session: Session, pack: RegisteredPack, task_id: int, workload: str, races: Sequence[Row]
) -> bool:
    # Those of one network have the same turns, and those of all but a hostile runner, too.
    n_turns = len(next(iter(races[0]["race"].values())))
    races = [row for row in races if all(len(each) == n_turns for each in row["race"].values())]
    records = {
        name: record
        for name in races[0]["race"]
        if all(name in row["race"] for row in races)
        and (record := _record(session, pack, task_id, workload, name)) is not None
    }
    if not records:
        return False
    fastest = min(records, key=lambda name: bests.latency_of(records[name]))
    # Seconds that each candidate saves in each turn of each race.
    gains = {
        name: [
            [slower - faster for slower, faster in zip(race[fastest], race[name], strict=True)]
            for race in (row["race"] for row in races)
        ]
        for name in records
    }
    n_calls = sum(int(row["calls"]) for row in races)
    total = {name: sum(map(statistics.median, each)) for name, each in gains.items()}
    winner = max(total, key=lambda name: total[name])
    needed = MIN_GAIN * sum(statistics.median(row["race"][fastest]) for row in races)
    own = bests.latency_of(records[fastest])
    turns = [own - sum(each) / n_calls for each in zip(*gains[winner], strict=True)]
    # In a disturbed turn the others may lose more than the winner takes.
    samples = [secs for secs in turns if secs > 0.0]
    if total[winner] <= needed or 2 * len(samples) <= len(turns):
        return False
    best = session.get(BestRecord, task_id)
    if best is not None and best.latency < statistics.median(samples):
        return False  # one that the race had not
    bests.confirm(session, records[fastest].id, [own])
    bests.confirm(session, records[winner].id, samples)
    bests.choose_confirmed(session, task_id, [records[fastest].id, records[winner].id])
    return True


def _is_race(row: Row) -> bool:
    """Return whether a row has samples of candidates that took turns."""
    race, calls = row.get("race"), row.get("calls")
    return (
        isinstance(race, dict)
        and isinstance(calls, int)
        and 0 < calls < _MAX_CALLS
        and all(map(_are_samples, race.values()))
        and len(set(map(len, race.values()))) == 1
    )


def _are_samples(value: Any) -> bool:
    return bool(
        isinstance(value, list)
        and value
        and all(isinstance(each, float) and 0.0 < each < math.inf for each in value)
    )


def _record(
    session: Session, pack: RegisteredPack, task_id: int, workload: str, name: str
) -> MeasureRecord | None:
    candidate = pack.candidate(workload, name)
    if candidate is None:
        return None
    trace_hash = measure_records.trace_hash(candidate.trace)
    stmt = select(MeasureRecord).where(
        MeasureRecord.task_id == task_id,
        MeasureRecord.trace_hash == trace_hash,
        MeasureRecord.verified,
    )
    return session.scalars(stmt).first()
