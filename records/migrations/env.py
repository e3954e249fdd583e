"""Runs migrations on the connection that ``migrate`` hands over, inside its transaction."""

from alembic import context

from records.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
