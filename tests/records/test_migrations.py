"""The migrations and the models say the same, and take what is stored along."""

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Engine, inspect, select, text

from records import (
    calibrations,
    database,
    devices,
    jobs,
    measure_records,
    migrations,
    picks,
    rounds,
    service_models,
    submissions,
)
from records.models import Base, JobFailure, MeasureRecord
from records.rounds import RoundResult
from tests.records import make
from tests.records.test_submissions import wanted

# Importing them is what makes their tables known.
assert service_models.Worker.metadata is Base.metadata


def test_migrated_schema_is_that_of_the_models(engine: Engine) -> None:
    """Alembic finds no table, column, index or constraint to add or drop."""
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_migrated_checks_are_those_of_the_models(engine: Engine) -> None:
    """Alembic does not compare check constraints, so we do, by name."""
    inspector = inspect(engine)
    migrated = {
        check["name"]
        for table in inspector.get_table_names()
        for check in inspector.get_check_constraints(table)
    }
    wanted = {
        constraint.name
        for table in Base.metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }

    assert migrated == wanted


# A database as revision 0001 left it: two rounds of a job, one record that was imported.
_OLD_ROWS = """
INSERT INTO network VALUES (1, 'n', 'net', '{}', '2026-01-01 00:00:00+00:00');
INSERT INTO target VALUES (1, 'llvm', '{}', 'f');
INSERT INTO workload VALUES (1, 'w', 'relax', '', 1e9, 'dense');
INSERT INTO task VALUES (1, 1, 1);
INSERT INTO job (id, network_id, target_id, objective, seed, spent_secs, priority, state,
    settings, created, updated) VALUES (1, 1, 1, 'weighted_sum', 0, 9.5, 0, 'paused', '{}',
    '2026-01-01 00:00:00+00:00', '2026-01-01 00:00:00+00:00');
INSERT INTO pick (id, job_id, sequence, task_id, n_trials, terms, done, created) VALUES
    (1, 1, 1, 1, 2, '{}', true, '2026-01-01 00:00:00+00:00'),
    (2, 1, 2, 1, 2, '{}', false, '2026-01-01 00:00:00+00:00');
INSERT INTO measure_record (id, task_id, pick_id, trace, trace_hash, run_secs, latency,
    error_kind, error_text, verified, worker, created) VALUES
    (1, 1, 1, 't', 'a', '[2.0]', 2.0, NULL, NULL, true, 'w', '2026-01-01 00:00:00+00:00'),
    (2, 1, 1, 't', 'b', NULL, NULL, 'run_timeout', 'late', false, 'w', '2026-01-01 00:00:00+00:00'),
    (3, 1, 2, 't', 'c', '[1.0]', 1.0, NULL, NULL, true, 'w', '2026-01-01 00:00:00+00:00'),
    (4, 1, NULL, 't', 'd', '[3.0]', 3.0, NULL, NULL, true, 'w', '2026-01-01 00:00:00+00:00');
INSERT INTO best_record VALUES (1, 3, 1.0, false)
"""


def test_an_old_database_comes_along(engine: Engine) -> None:
    """From 0001 to the newest and back: rows stay, and sums are those of the records."""
    migrations.downgrade(engine, "0001")
    with engine.begin() as connection:
        for statement in _OLD_ROWS.split(";"):
            connection.execute(text(statement))
    migrations.migrate(engine, "old")

    with database.sessions(engine).begin() as session:
        assert rounds.history(session, [1]) == {
            1: [
                RoundResult(None, 1, 0, 3.0, run_secs=3.0),
                RoundResult(1, 2, 1, 2.0, run_secs=2.0, n_timeouts=1),
                RoundResult(2, 1, 0, 1.0, run_secs=1.0),
            ]
        }
        assert session.get_one(JobFailure, (1, "run_timeout")).record_id == 2
        job = jobs.get_job(session, 1)
        assert (job.state, job.spent_secs, job.submission, job.n_events) == ("paused", 9.5, "", 0)
    migrations.downgrade(engine, "0001")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM measure_record")).scalar() == 4
    migrations.migrate(engine, "old")


def test_going_back_keeps_what_was_measured_twice_over(engine: Engine) -> None:
    """Two submissions of one network, which older revisions cannot tell apart, both stay."""
    with database.sessions(engine).begin() as session:
        for name in ("a", "b"):
            job_id = make.job(session, submission=name)
            picks.add_pick(session, job_id, make.task(session), 1, {})
        submissions.submit(session, wanted("never loaded"))
    migrations.downgrade(engine, "0002")

    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id, seed FROM job ORDER BY id")).all()
        n_picks = connection.execute(text("SELECT count(*) FROM pick")).scalar()
    migrations.migrate(engine, "again")

    assert [tuple(row) for row in rows] == [(1, 0), (2, -2)]
    assert n_picks == 2


def test_records_stay_without_their_conditions(engine: Engine) -> None:
    """0003 knows no conditions and no devices; what was measured goes there and back."""
    with database.sessions(engine).begin() as session:
        task_id, job_id = make.task(session), make.job(session)
        pick_id = picks.add_pick(session, job_id, task_id, 1, {}).id
        new = make.timed(task_id, "t", 1.0, pick_id=pick_id, conditions={"throttled": []})
        measure_records.add_record(session, new)
        gpu = calibrations.NewCalibration("gpu0", "h", make.target(session), "k", 1.0)
        calibrations.add(session, gpu)
        here = {"name": "gpu0", "worker": "h:1", "host": "h", "fingerprint": {}}
        devices.report(session, [devices.Report(**here, state="idle")])  # type: ignore[arg-type]
    migrations.downgrade(engine, "0003")
    migrations.migrate(engine, "again")

    with database.sessions(engine)() as session:
        record = session.scalars(select(MeasureRecord)).one()
        assert (record.latency, record.conditions) == (1.0, None)
        assert [pick.id for pick in picks.open_picks(session, job_id)] == [pick_id]
        assert devices.list_devices(session) == []
        assert calibrations.latest(session, make.target(session)) == {}
