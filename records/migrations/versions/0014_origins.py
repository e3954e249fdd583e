"""Add the origin of each record: the source that proposed its candidate.

Revision ID: 0014
"""

from alembic.op import add_column, drop_column
from sqlalchemy import Column, Text

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    add_column("measure_record", Column("origin", Text()))


def downgrade() -> None:
    drop_column("measure_record", "origin")
