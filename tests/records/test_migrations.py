"""Upgrades lead to the schema of the models, and keep the rows of an older database."""

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Engine, inspect, text

from records import bests, database, measure_records, migrations
from records.errors import LeaseLost, SchemaTooNew, SchemaTooOld
from records.models import Base, JobFailure, Pick
from records.service import leases, service_models
from records.tuning import events
from tests.records import make, schemas
from tests.records.later_version import later_version

# Importing the module registers the tables of the service.
assert service_models.Worker.metadata is Base.metadata

pytestmark = pytest.mark.usefixtures("migrating")


def differences(engine: Engine) -> list[object]:
    """Return the differences between the schema of a database and the models."""
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        return list(compare_metadata(context, Base.metadata))


def checks(engine: Engine) -> dict[str | None, str]:
    """Return the check constraints by name, which Alembic does not compare."""
    inspector = inspect(engine)
    return {
        check["name"]: check["sqltext"]
        for table in inspector.get_table_names()
        for check in inspector.get_check_constraints(table)
    }


MODEL_CHECKS = {
    constraint.name: str(constraint.sqltext)
    for table in Base.metadata.tables.values()
    for constraint in table.constraints
    if isinstance(constraint, CheckConstraint)
}


@pytest.mark.parametrize("schema", schemas.PATHS, ids=lambda path: path.stem)
def test_an_upgraded_schema_is_that_of_the_models(schema: Path, tmp_path: Path) -> None:
    """A model that changes needs a migration, or another schema before a release."""
    connection = sqlite3.connect(tmp_path / "older.db")
    connection.executescript(schema.read_text())
    connection.close()
    engine = database.open_database(f"sqlite:///{tmp_path}/older.db", upgrade="always")

    assert differences(engine) == []
    assert checks(engine) == MODEL_CHECKS
    engine.dispose()


def test_each_revision_has_a_schema() -> None:
    """Upgrades are tried from every version."""
    assert {path.stem for path in schemas.PATHS} == migrations._known()[1]


def test_a_new_schema_is_that_of_the_models(engine: Engine) -> None:
    """The databases have it under the names that the models give."""
    assert differences(engine) == []
    # PostgreSQL words the constraints in its own way.
    assert checks(engine).keys() == MODEL_CHECKS.keys()


def test_an_upgrade_keeps_rows_and_ends_the_lease_of_an_older_coordinator(
    url: str, tmp_path: Path
) -> None:
    """Only an explicit upgrade changes the schema; older processes write nothing after it."""
    older = database.open_database(url)
    with database.sessions(older).begin() as session:
        job_id = make.job(session)
        held = leases.acquire(session, "coordinator", "old", 10.0)
    assert held is not None
    with later_version(tmp_path / "later"):
        with pytest.raises(SchemaTooOld, match=r"revision version_0_1.*run `tuner db upgrade`"):
            database.open_database(url)
        with pytest.raises(SchemaTooOld):
            database.check_schema(older)
        newer = database.open_database(url, upgrade="always")
        with newer.connect() as connection:
            rows = connection.execute(text("SELECT id, later FROM job")).all()
        database.check_schema(newer)
        newer.dispose()

    assert [tuple(row) for row in rows] == [(job_id, "new")]
    with pytest.raises(LeaseLost), leases.fenced(older, held).begin() as session:
        make.task(session)
    with pytest.raises(SchemaTooNew, match="upgrade subgraph-tuner"):
        database.check_schema(older)
    older.dispose()


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
