"""Add the duration of rounds and the trials that jobs had reached.

Revision ID: 0002
"""

from alembic.op import add_column, drop_column
from sqlalchemy import Column, Double, Integer

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    add_column("job", Column("reached_trials", Integer()))
    add_column("job", Column("virtual_secs", Double(), nullable=False, server_default="0"))
    add_column("pick", Column("secs", Double()))


def downgrade() -> None:
    drop_column("pick", "secs")
    drop_column("job", "virtual_secs")
    drop_column("job", "reached_trials")
