"""Add clock factors of records, profiles of workloads, and peaks of devices.

The factors divide the drift of a device's clock out of latencies.

Revision ID: 0005
"""

from alembic.op import add_column, drop_column
from sqlalchemy import JSON, Column, Double

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    add_column("measure_record", Column("clock_factor", Double()))
    add_column("measure_record", Column("confirmed_factor", Double()))
    add_column("target", Column("clock_secs", Double()))
    add_column("target", Column("peaks", JSON()))
    add_column("workload", Column("profile", JSON()))


def downgrade() -> None:
    drop_column("workload", "profile")
    drop_column("target", "peaks")
    drop_column("target", "clock_secs")
    drop_column("measure_record", "confirmed_factor")
    drop_column("measure_record", "clock_factor")
