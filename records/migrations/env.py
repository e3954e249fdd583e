"""Alembic environment: runs migrations on the connection and transaction of the caller."""

from alembic import context

from records.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
