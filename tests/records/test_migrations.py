"""The migrations and the models say the same."""

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Engine, inspect

from records import service_models
from records.models import Base

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
