"""Migrations produce the schema of the models and keep the data of older versions."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Engine, inspect, select, text

from records import (
    audit,
    bests,
    builds,
    calibrations,
    database,
    devices,
    events,
    jobs,
    leases,
    measure_records,
    migrations,
    picks,
    rounds,
    service_models,
    submissions,
    targets,
    tasks,
    tokens,
)
from records.errors import LeaseLost, SchemaTooOld
from records.models import Base, Job, JobFailure, MeasureRecord, Pick
from records.rounds import RoundResult
from tests.records import make
from tests.records.test_submissions import submission_of

# Importing the module registers the tables of the service.
assert service_models.Worker.metadata is Base.metadata

pytestmark = pytest.mark.usefixtures("migrating")

DUMPS = Path(__file__).parent / "data"


def load_dump(url: str, revision: str) -> None:
    """Fill an empty database with a dump that was written by the code of a revision."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        path.parent.mkdir()
        connection = sqlite3.connect(path)
        connection.executescript((DUMPS / f"{revision}.sqlite.sql").read_text())
        connection.close()
        return
    with psycopg.connect(url) as postgres:
        postgres.execute((DUMPS / f"{revision}.postgresql.sql").read_bytes())


@pytest.fixture(params=["0001", "0003"])
def revision(request: pytest.FixtureRequest) -> str:
    """Each earlier revision that has a dump, in turn."""
    value: str = request.param
    return value


@pytest.fixture
def upgraded(revision: str, url: str) -> Iterator[Engine]:
    """A database of an earlier revision after its upgrade, of each kind in turn."""
    load_dump(url, revision)
    engine = database.open_database(url, upgrade="always")
    yield engine
    engine.dispose()


def differences(engine: Engine) -> list[object]:
    """Return the differences between the schema of a database and the models."""
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        return list(compare_metadata(context, Base.metadata))


def checks(engine: Engine) -> set[str | None]:
    """Return the names of the check constraints, which Alembic does not compare."""
    inspector = inspect(engine)
    return {
        check["name"]
        for table in inspector.get_table_names()
        for check in inspector.get_check_constraints(table)
    }


MODEL_CHECKS = {
    constraint.name
    for table in Base.metadata.tables.values()
    for constraint in table.constraints
    if isinstance(constraint, CheckConstraint)
}


def test_migrated_schema_is_that_of_the_models(engine: Engine) -> None:
    """Tables, columns, indexes and constraints of a new database match the models."""
    assert differences(engine) == []
    assert checks(engine) == MODEL_CHECKS


def test_upgraded_schema_is_that_of_the_models(upgraded: Engine) -> None:
    """An old database gets the same schema as a new one."""
    assert differences(upgraded) == []
    assert checks(upgraded) == MODEL_CHECKS


def test_upgraded_database_keeps_its_records(revision: str, upgraded: Engine) -> None:
    """Totals, best record and tasks of an old database are those of its records."""
    secs = None if revision == "0001" else 12.5  # 0001 stores no durations
    with database.sessions(upgraded).begin() as session:
        task_id = make.task(session, "w0")
        assert rounds.history(session, [task_id]) == {
            task_id: [
                RoundResult(None, 1, 0, 3.0, run_secs=3.0),
                RoundResult(1, 2, 1, 2.0, secs, 2.0, n_timeouts=1),
                RoundResult(2, 1, 0, 1.0, run_secs=1.0),
            ]
        }
        assert bests.best_records(session, [task_id])[task_id].record_id == 3
        assert bests.best_latencies(session, [task_id]) == {task_id: 1.2}
        assert session.get_one(JobFailure, (1, "run_timeout")).record_id == 2
        record = session.get_one(MeasureRecord, 1)
        assert (record.run_secs, record.conditions) == ([2.0, 2.5, 1.5], None)
        assert [pick.id for pick in picks.open_picks(session, 1)] == [2]
        weighted = tasks.weighted_tasks(session, 1, make.target(session))
        assert [(task.workload_hash, task.weight) for task in weighted] == [("w0", 2), ("w1", 1)]


def test_upgraded_database_keeps_its_job(upgraded: Engine) -> None:
    """A paused job of an old database is the same job, and can be resumed and spend more."""
    with database.sessions(upgraded).begin() as session:
        job_id = make.job(session, budget_trials=128)
        assert job_id == 1
        job = jobs.get_job(session, job_id)
        assert (job.state, job.message, job.spent_secs) == ("paused", "stopped by hand", 9.5)
        assert (job.budget_trials, job.settings, job.submission) == (128, {"number": 3}, "")
        n_events = job.n_events
        pick = make.pick(session, job_id, make.task(session), 1)
        new = make.timed(make.task(session), "new", 0.5, pick_id=pick.id)
        assert measure_records.add_record(session, new) is not None
        assert pick.sequence == 4
        assert events.last_events(session, [job_id])[job_id].n_events == n_events + 2


def test_an_upgrade_ends_the_lease_of_an_older_coordinator(url: str) -> None:
    """Its next write is refused, and it finds the reason."""
    engine = database.open_database(url)
    factory = database.sessions(engine)
    with factory.begin() as session:
        held = leases.acquire(session, "coordinator", "old", 10.0)
    assert held is not None
    migrations.downgrade(engine, "0006")
    with pytest.raises(SchemaTooOld, match=r"revision 0006.*run `tuner db upgrade`"):
        database.check_schema(engine)
    migrations.migrate(engine, "old")

    with pytest.raises(LeaseLost), leases.fenced(engine, held).begin() as session:
        make.task(session)
    database.check_schema(engine)
    engine.dispose()


def test_upgraded_service_keeps_its_jobs_and_tokens(url: str) -> None:
    """Submissions, tokens and builds of revision 0003 survive the upgrade."""
    load_dump(url, "0003")
    engine = database.open_database(url, upgrade="always")

    with database.sessions(engine).begin() as session:
        assert [job.name for job in submissions.claimable(session)] == [
            "never loaded",
            "the same network",
        ]
        assert [token.name for token in tokens.list_tokens(session)] == ["ci"]
        assert [waiting.build.job_id for waiting in builds.waiting(session)] == [1]
    engine.dispose()


def test_downgrade_and_upgrade_keep_records(upgraded: Engine) -> None:
    """Records survive a downgrade to the first revision and an upgrade back."""
    migrations.downgrade(upgraded, "0001")
    with upgraded.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM measure_record")).scalar() == 4
    migrations.migrate(upgraded, "old")

    assert differences(upgraded) == []


def test_downgrade_keeps_both_submissions_of_one_network(engine: Engine) -> None:
    """Jobs that older revisions cannot tell apart get distinct seeds and keep their picks."""
    with database.sessions(engine).begin() as session:
        for name in ("a", "b"):
            job_id = make.job(session, submission=name)
            make.pick(session, job_id, make.task(session), 1)
        submissions.submit(session, submission_of("never loaded"))
    migrations.downgrade(engine, "0002")

    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id, seed FROM job ORDER BY id")).all()
        n_picks = connection.execute(text("SELECT count(*) FROM pick")).scalar()
    migrations.migrate(engine, "again")

    assert [tuple(row) for row in rows] == [(1, 0), (2, -2)]
    assert n_picks == 2


def test_upgrade_gives_jobs_their_owners(engine: Engine) -> None:
    """The first request of a job names its owner; anonymous senders own nothing."""
    with database.sessions(engine).begin() as session:
        tokens.create_token(session, "ci", ["submit"])
        names = {}
        for submission, subjects in (("a", ["ci", "other"]), ("b", ["anonymous"]), ("c", [])):
            job, _ = submissions.submit(session, submission_of(submission))
            names[submission] = job.id
            for subject in subjects:
                audit.log_action(session, subject, "::1", "tune", job.id)
    migrations.downgrade(engine, "0005")
    migrations.migrate(engine, "again")

    with database.sessions(engine).begin() as session:
        owners = {n: session.get_one(Job, job_id).owner for n, job_id in names.items()}
        assert owners == {"a": "ci", "b": None, "c": None}
        again = submission_of(submissions.owned("a", "ci"), owner="ci")
        assert submissions.submit(session, again)[0].id == names["a"]
    assert differences(engine) == []


@pytest.mark.parametrize(
    ("revision", "clock_factor"), [("0004", None), ("0010", 0.5), ("0011", 0.5)]
)
def test_downgrade_forgets_the_clock(
    engine: Engine, revision: str, clock_factor: float | None
) -> None:
    """Revision 0004 has no clock factors, 0010 and 0011 other kernels; latencies stay."""
    with database.sessions(engine).begin() as session:
        targets.clock_reference(session, make.target(session), 0.1)
        new = make.timed(make.task(session), "t", 1.0, clock_factor=0.5)
        measure_records.add_record(session, new)
    migrations.downgrade(engine, revision)
    migrations.migrate(engine, "again")

    with database.sessions(engine)() as session:
        record = session.scalars(select(MeasureRecord)).one()
        assert (record.latency, record.clock_factor) == (0.5, clock_factor)
        assert targets.clock_reference(session, make.target(session), 0.2) == 0.2


def test_upgrade_gives_jobs_of_a_removed_allocator_the_gradient(engine: Engine) -> None:
    """Their other options stay, and so do other jobs and the times of all."""
    with database.sessions(engine).begin() as session:
        make.job(session, settings={"allocator": "forecast", "goal": {}})
        for submission, allocator in (("a", "forecast"), ("b", "tvm")):
            request = {"allocator": allocator, "seed": 3, "models": ["zoo:mlp"]}
            submissions.submit(session, submission_of(submission, request=request))
        updated = session.scalars(select(Job.updated).order_by(Job.id)).all()
    migrations.downgrade(engine, "0012")
    migrations.migrate(engine, "again")

    with database.sessions(engine)() as session:
        upgraded = session.scalars(select(Job).order_by(Job.id)).all()
        assert [job.settings for job in upgraded] == [{"allocator": "gradient", "goal": {}}, {}, {}]
        assert [job.request for job in upgraded] == [
            None,
            {"allocator": "gradient", "seed": 3, "models": ["zoo:mlp"]},
            {"allocator": "tvm", "seed": 3, "models": ["zoo:mlp"]},
        ]
        assert [job.updated for job in upgraded] == updated


def test_downgrade_drops_conditions_and_devices(engine: Engine) -> None:
    """Revision 0003 has neither conditions nor devices; records and picks stay."""
    with database.sessions(engine).begin() as session:
        task_id, job_id = make.task(session), make.job(session)
        pick_id = make.pick(session, job_id, task_id, 1).id
        new = make.timed(task_id, "t", 1.0, pick_id=pick_id, conditions={"throttled": []})
        measure_records.add_record(session, new)
        gpu = calibrations.NewCalibration("gpu0", "h", make.target(session), "k", 1.0)
        calibrations.add(session, gpu)
        report = devices.DeviceReport(
            name="gpu0", worker="h:1", host="h", fingerprint={}, state="idle"
        )
        devices.report(session, [report])
    migrations.downgrade(engine, "0003")
    migrations.migrate(engine, "again")

    with database.sessions(engine)() as session:
        record = session.scalars(select(MeasureRecord)).one()
        assert (record.latency, record.conditions) == (1.0, None)
        assert [pick.id for pick in picks.open_picks(session, job_id)] == [pick_id]
        assert devices.list_devices(session) == []
        assert calibrations.latest(session, make.target(session)) == {}


def test_rows_have_numbers_beyond_32_bits(engine: Engine) -> None:
    """A database that has counted to 2**31 goes on, in every table that refers to its trials."""
    large = 2**31 + 5
    with database.sessions(engine).begin() as session:
        job_id, task_id = make.job(session), make.task(session)
        if engine.dialect.name == "postgresql":
            for table in ("measure_record", "pick"):
                session.execute(text(f"SELECT setval('{table}_id_seq', {large})"))
        else:
            session.add(
                Pick(id=large, job_id=job_id, sequence=7, task_id=task_id, n_trials=1, terms={})
            )
            session.flush()
        pick = make.pick(session, job_id, task_id, 1)
        assert pick.id > large - 1
        kept = make.timed(task_id, "kept", 1.0, pick_id=pick.id, features=b"f")
        record = measure_records.add_record(session, kept)
        measure_records.add_record(
            session, make.failed(task_id, "failed", "run_error", pick_id=pick.id)
        )
        assert record is not None
        if engine.dialect.name == "postgresql":
            assert record.id > large
            assert session.get_one(JobFailure, (job_id, "run_error")).record_id > large
            assert bests.best_records(session, [task_id])[task_id].record_id == record.id
        session.execute(text("UPDATE job SET n_events = 3000000000"))
        assert events.add_event(session, job_id, "status", {}) == 3_000_000_001
