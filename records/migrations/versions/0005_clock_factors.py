"""Add the factors that divide the drift of a device's clock out of latencies.

Revision ID: 0005
"""

from alembic.op import add_column, drop_column
from sqlalchemy import Column, Double

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    add_column("measure_record", Column("clock_factor", Double()))
    add_column("measure_record", Column("confirmed_factor", Double()))
    add_column("target", Column("clock_secs", Double()))


def downgrade() -> None:
    drop_column("target", "clock_secs")
    drop_column("measure_record", "confirmed_factor")
    drop_column("measure_record", "clock_factor")
