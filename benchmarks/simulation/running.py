"""Execution of a simulation: a database with networks, a fleet, and the coordinator."""

import resource
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.simulation import networks, report
from benchmarks.simulation.calls import World
from benchmarks.simulation.database_load import DatabaseMeter
from benchmarks.simulation.executor import SimulatedExecutor
from benchmarks.simulation.report import Report, Snapshot
from benchmarks.simulation.scenario import Scenario
from records import database, jobs
from records.models import MeasureRecord
from scheduler.replay import Recording
from tuner.jobs.preparation import Prepared
from tuner.jobs.spec import MAX_TRIALS, TuneSpec
from tuner.tuning.context import TuningContext
from tuner.tuning.coordinator import Coordinator
from tuner.tuning.job.session_options import SessionOptions
from tuner.tuning.session import TuningSession
from tuner.tuning.status import TuningStatus


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
    prepared = networks.store(sessions, scenario, recordings)
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
