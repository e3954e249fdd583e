"""Record the latency curves of a network's tasks for the comparison of allocators.

Tunes one network with round-robin, which favours no task, until every task had the same number of
rounds, and writes its curves with the roof and the similarity group of every task, the date, the
machine, and the share of trials that were disturbed. An interrupted call can be repeated, and one
with more rounds continues from the last.

    python -m benchmarks.scheduler.record_curves squeezenet --rounds 96 --trials-per-round 8

A search times each candidate in one moment, and the fastest of many is often the luckiest. The
curves are therefore those of the finals, which time all candidates that could be the fastest in
turns. Record on a machine that does nothing else. Without a name, prints those of the eight
networks.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from benchmarks.scheduler.curve_models import NETWORKS, request_of
from benchmarks.workers import open_worker
from records import bests
from records.models import MeasureRecord
from records.tasks import WeightedTask, weighted_tasks
from records.tuning import rounds
from scheduler.replay import Recording
from tuner.context import Context, open_context
from tuner.job_replay import recording as recordings
from tuner.jobs.preparation import Prepared, prepare
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.spec import TuneSpec
from tuner.tuning.run_local import run_tuning


def main() -> None:
    """Record the network of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", nargs="?", help="one of the eight, a model file, or zoo:NAME")
    parser.add_argument("--rounds", type=int, default=96, help="rounds of every task")
    parser.add_argument("--trials-per-round", type=int, default=8)
    parser.add_argument("--data-dir", type=Path, default=Path("build/curves"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "curves")
    arguments = parser.parse_args()
    if arguments.network is None:
        print("\n".join(NETWORKS))
        return
    request = request_of(arguments.network, arguments.data_dir / "models")
    name = arguments.network.removeprefix("zoo:").replace("/", "-")
    with open_context(None, arguments.data_dir / name) as context:
        prepared = _prepare(context, request)
        n_trials = arguments.rounds * arguments.trials_per_round * len(prepared.tasks)
        spec = TuneSpec(
            trials=n_trials,
            trials_per_round=arguments.trials_per_round,
            allocator="round-robin",
        )
        run_tuning(context, TuneRequest((request,), spec))
        with context.sessions() as session:
            result = _write(session, prepared, name, arguments.out / f"{name}.jsonl.gz")
    print(json.dumps({"benchmark": "record_curves", "requested": n_trials, **result}))


def _prepare(context: Context, request: ModelRequest) -> Prepared:
    with open_worker(context.settings) as worker:
        return prepare(request, context, worker, must_run=True)


def _write(session: Session, prepared: Prepared, name: str, path: Path) -> dict[str, Any]:
    # The peaks of the device, and with them the roofs, may be known only since the first round.
    tasks = weighted_tasks(session, prepared.network_id, prepared.target_id)
    origin = {
        "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": dict(prepared.target.device),
        "target": prepared.target.spec,
        "peaks": None if tasks[0].peaks is None else dict(tasks[0].peaks),
        **_disturbance(session, tasks),
    }
    confirmed = _confirmed(session, recordings.record(session, name, tasks), tasks)
    recording = replace(confirmed, origin=origin)
    path.parent.mkdir(parents=True, exist_ok=True)
    recordings.write(recording, path)
    return {
        "network": name,
        "trials": sum(sum(task.n_trials) for task in recording.tasks),
        "disturbed_share": origin["disturbed_share"],
        "latency_ms": round(recording.final_secs * 1e3, 4),
        # The part of the latency that the last quarter of the rounds saved.
        "last_quarter": round(_saved_lately(recording) / recording.final_secs, 4),
        "path": str(path),
    }


def _confirmed(session: Session, recording: Recording, tasks: Sequence[WeightedTask]) -> Recording:
    """Return a recording with the latencies of finals, for the records that were in one.

    Others could not win, so none of them is faster than the winner of its task.
    """
    task_ids = [task.task_id for task in tasks]
    latencies: dict[tuple[int, int | None], float] = {}
    stmt = select(MeasureRecord).where(MeasureRecord.task_id.in_(task_ids), MeasureRecord.verified)
    for record in session.scalars(stmt):
        place = (record.task_id, record.pick_id)
        latencies[place] = min(bests.latency_of(record), latencies.get(place, math.inf))
    fastest = bests.best_latencies(session, task_ids)
    confirmed = []
    for recorded, (task_id, history) in zip(
        recording.tasks, rounds.history(session, task_ids).items(), strict=True
    ):
        winner = fastest.get(task_id, math.inf)
        of_rounds = [
            max(winner, latencies.get((task_id, each.pick_id), math.inf))
            for each in history
            if each.n_trials
        ]
        confirmed.append(replace(recorded, best_secs=tuple(accumulate(of_rounds, min))))
    return replace(recording, tasks=tuple(confirmed))


def _disturbance(session: Session, tasks: Sequence[WeightedTask]) -> dict[str, Any]:
    """Return the share of trials with samples that were disturbed, or taken again for that."""
    task_ids = [task.task_id for task in tasks]
    conditions = list(
        session.scalars(select(MeasureRecord.conditions).where(MeasureRecord.task_id.in_(task_ids)))
    )
    marks = ("disturbed", "throttled", "repeated")
    shares = {
        f"{mark}_share": sum(bool((each or {}).get(mark)) for each in conditions)
        / max(len(conditions), 1)
        for mark in marks
    }
    return {name: round(share, 4) for name, share in shares.items()}


def _saved_lately(recording: Recording) -> float:
    return sum(
        task.weight * (task.best_secs[3 * len(task.best_secs) // 4] - task.best_secs[-1])
        for task in recording.tasks
        if task.best_secs
    )


if __name__ == "__main__":
    main()
