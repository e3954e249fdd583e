"""Add an index of the failed records, which are few among many.

Revision ID: 0010
"""

from alembic.op import create_index, drop_index
from sqlalchemy import text

revision = "0010"
down_revision = "0009"
_FAILED = text("error_kind IS NOT NULL")


def upgrade() -> None:
    create_index(
        "ix_measure_record_failed",
        "measure_record",
        ["id"],
        sqlite_where=_FAILED,
        postgresql_where=_FAILED,
    )


def downgrade() -> None:
    drop_index("ix_measure_record_failed", "measure_record")
