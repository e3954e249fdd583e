"""Add attempts at jobs, builds and rounds, their quarantine, and the suspects among candidates.

Revision ID: 0007
"""

from functools import partial
from typing import Any

from alembic.op import add_column, create_table, drop_column, drop_table, f
from sqlalchemy import (
    Boolean,
    Column,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    Text,
    false,
)

revision = "0007"
down_revision = "0006"
required = partial(Column[Any], nullable=False)


def upgrade() -> None:
    for table in ("job", "build", "pick"):
        add_column(table, required("attempts", Integer(), server_default="0"))
    for table in ("job", "build"):
        add_column(table, required("quarantined", Boolean(), server_default=false()))
    create_table(
        "suspect",
        required("task_id", Integer()),
        required("trace_hash", Text()),
        required("blame", Double()),
        required("created", DateTime(timezone=True)),
        ForeignKeyConstraint(["task_id"], ["task.id"], name=f("fk_suspect_task_id_task")),
        PrimaryKeyConstraint("task_id", "trace_hash", name=f("pk_suspect")),
    )


def downgrade() -> None:
    drop_table("suspect")
    for table in ("job", "build"):
        drop_column(table, "quarantined")
    for table in ("job", "build", "pick"):
        drop_column(table, "attempts")
