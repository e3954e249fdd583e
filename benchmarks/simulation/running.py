"""Execution of a simulation: a database with networks, a fleet, and the coordinator."""

import hashlib
import random
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, func, insert, select
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.simulation import kernels, report
from benchmarks.simulation.calls import World
from benchmarks.simulation.executor import SimulatedExecutor, fingerprint_of
from benchmarks.simulation.kernels import Kernel
from benchmarks.simulation.report import DatabaseMeter, Report, Snapshot
from benchmarks.simulation.scenario import Scenario
from records import database, jobs, networks, targets
from records.models import Extraction, MeasureRecord, NetworkTask, Task, Workload
from records.tasks import WeightedTask
from scheduler.replay import RecordedTask, Recording
from tuner.engines.base import ModelFile, TargetInfo
from tuner.errors import RequestError
from tuner.jobs.preparation import Prepared
from tuner.jobs.spec import MAX_TRIALS, TuneSpec
from tuner.library.manifest import Source
from tuner.networks.base import LoadedModel
from tuner.tuning.context import TuningContext
from tuner.tuning.coordinator import Coordinator
from tuner.tuning.job.session_options import SessionOptions
from tuner.tuning.session import TuningSession
from tuner.tuning.status import TuningStatus

SPEC = '{"kind":"simulated"}'
# Largest factor between the size of a simulated task and its recorded one.
_SPREAD = 4.0


@dataclass(frozen=True)
class _Drawn:
    """Task of a network, before it is stored."""

    workload: dict[str, Any]
    weight: int


def store(
    sessions: sessionmaker[Session], scenario: Scenario, recordings: Sequence[Recording]
) -> list[Prepared]:
    """Store the networks of a scenario, and return them as prepared networks.

    Raises:
        RequestError: If the recordings have no task with a latency.
    """
    recorded = kernels.usable([task for recording in recordings for task in recording.tasks])
    if not recorded:
        raise RequestError(
            "the recordings have no task with a latency; record a job whose trials ran"
        )
    with sessions.begin() as session:
        return [
            _store(session, scenario, recorded, number) for number in range(scenario.n_networks)
        ]


def _store(
    session: Session, scenario: Scenario, recorded: Sequence[RecordedTask], number: int
) -> Prepared:
    name = f"network-{number}"
    sha256 = hashlib.sha256(f"{scenario.seed}/{name}".encode()).hexdigest()
    target = TargetInfo(SPEC, "simulated", fingerprint_of(number % scenario.n_fingerprints))
    target_id = targets.ensure_target(session, target.spec, dict(target.device)).id
    network_id = networks.ensure_network(session, sha256, name, {}).id
    drawn = _draw(scenario, recorded, number)
    n_calls = sum(task.weight for task in drawn)
    if networks.extraction_of(session, network_id, target_id) is None:
        _store_tasks(session, network_id, target_id, drawn)
        mark = {"network_id": network_id, "target_id": target_id, "n_kernel_calls": n_calls}
        session.execute(insert(Extraction).values(**mark, notes=[], extra={}))
    statement = select(NetworkTask.task_id).where(NetworkTask.network_id == network_id)
    task_ids = session.scalars(statement.order_by(NetworkTask.position)).all()
    rows = tuple(
        WeightedTask(
            task_id=task_id,
            workload_hash=task.workload["hash"],
            name=task.workload["name"],
            weight=task.weight,
            flop=task.workload["flop"],
            engine=kernels.ENGINE,
        )
        for task_id, task in zip(task_ids, drawn, strict=True)
    )
    model = LoadedModel(name, sha256, ModelFile("", "onnx", {}), (), (), Source(name))
    return Prepared(model, target, network_id, target_id, rows, n_calls, ())


def _draw(scenario: Scenario, recorded: Sequence[RecordedTask], number: int) -> list[_Drawn]:
    """Draw the tasks of a network; no two networks share one."""
    draws = random.Random(f"{scenario.seed}/{number}")
    mean_secs = sum(map(kernels.secs_per_trial, recorded)) / len(recorded)
    begin, end = (i * scenario.n_tasks // scenario.n_networks for i in (number, number + 1))
    drawn = []
    for task_number in range(begin, end):
        task, factor = draws.choice(recorded), _SPREAD ** draws.uniform(-1.0, 1.0)
        ir = Kernel.of(task, factor, mean_secs).as_ir(task_number)
        workload = {
            "hash": hashlib.sha256(ir).hexdigest(),
            "engine": kernels.ENGINE,
            "ir": ir,
            "flop": task.flop * factor,
            "name": task.name,
        }
        drawn.append(_Drawn(workload, draws.randint(1, 2 * task.weight)))
    return drawn


def _store_tasks(
    session: Session, network_id: int, target_id: int, drawn: Sequence[_Drawn]
) -> None:
    """Store new tasks in few statements; a hundred thousand single statements take minutes."""
    added = insert(Workload).returning(Workload.id, sort_by_parameter_order=True)
    workload_ids = session.scalars(added, [task.workload for task in drawn]).all()
    ids = session.scalars(
        insert(Task).returning(Task.id, sort_by_parameter_order=True),
        [{"workload_id": workload_id, "target_id": target_id} for workload_id in workload_ids],
    ).all()
    rows = [
        {"network_id": network_id, "task_id": ids[i], "weight": task.weight, "position": i}
        for i, task in enumerate(drawn)
    ]
    session.execute(insert(NetworkTask), rows)


def simulate(
    scenario: Scenario, recordings: Sequence[Recording], engine: Engine, data_dir: Path
) -> Report:
    """Tune the networks of a scenario on its fleet, and report.

    Args:
        scenario: Parameters of the fleet and its work.
        recordings: Recorded tasks to draw simulated ones from.
        engine: Opened database; networks of an earlier simulation continue.
        data_dir: Folder for the coordinator's files.

    Raises:
        RequestError: If the recordings have no task with a latency.
        TunerError: If a job failed.
    """
    sessions = database.sessions(engine)
    prepared = store(sessions, scenario, recordings)
    with sessions() as session:
        last_id = session.scalar(select(func.max(MeasureRecord.id))) or 0
    world = World(scenario)
    executor = SimulatedExecutor(world)
    meter = DatabaseMeter(world.clock)
    meter.watch(engine)
    moments: list[Snapshot] = []
    for at in (scenario.warm_up_secs, scenario.secs):
        world.agenda.add(at, lambda: moments.append(report.take_snapshot(world, executor, meter)))
    _coordinate(world, executor, sessions, prepared, data_dir)
    end = report.take_snapshot(world, executor, meter)
    with sessions() as session:
        check = report.check_records(session, end.outcomes, last_id)
    return report.make_report(executor, moments, check, _peak_bytes())


def _coordinate(
    world: World,
    executor: SimulatedExecutor,
    sessions: sessionmaker[Session],
    prepared: Sequence[Prepared],
    data_dir: Path,
) -> None:
    """Run a job for each network until the time is over and its running rounds have ended."""
    context = TuningContext(sessions, executor, data_dir)
    coordinator = Coordinator(context, loop_factory=world.make_loop)
    spec = TuneSpec(
        trials=MAX_TRIALS,
        trials_per_round=world.scenario.trials_per_round,
        seed=world.scenario.seed,
    )
    options = SessionOptions(spec)
    with world.clock.stopped():
        opened = [TuningSession(context, network, options, _ignore) for network in prepared]
    world.agenda.add(
        world.scenario.secs, lambda: _pause(sessions, [session.job_id for session in opened])
    )
    coordinator.run(opened)
    for error in coordinator.failures.values():
        raise error


def _pause(sessions: sessionmaker[Session], job_ids: Sequence[int]) -> None:
    with sessions.begin() as session:
        for job_id in job_ids:
            jobs.set_state(session, job_id, "paused", only_from=("running",))


def _ignore(_status: TuningStatus) -> None:
    pass


def _peak_bytes() -> int:
    """Return the peak memory of this process; Linux reports it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
