"""Add the conditions of records, device status, calibrations, and an index of open picks.

Revision ID: 0004
"""

from functools import partial
from typing import Any

from alembic.op import (
    add_column,
    create_index,
    create_table,
    drop_column,
    drop_index,
    drop_table,
    f,
)
from sqlalchemy import (
    JSON,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    Text,
    text,
)

revision = "0004"
down_revision = "0003"
required = partial(Column[Any], nullable=False)


def upgrade() -> None:
    add_column("measure_record", Column("conditions", JSON()))
    create_index(
        "ix_pick_open",
        "pick",
        ["job_id", "sequence"],
        sqlite_where=text("done = 0"),
        postgresql_where=text("NOT done"),
    )
    _create_calibrations()
    _create_devices()


def downgrade() -> None:
    drop_table("device_status")
    drop_table("calibration")
    drop_index("ix_pick_open", "pick")
    drop_column("measure_record", "conditions")


def _create_calibrations() -> None:
    create_table(
        "calibration",
        required("id", Integer()),
        required("device", Text()),
        required("host", Text()),
        required("target_id", Integer()),
        required("kernel", Text()),
        required("secs", Double()),
        required("created", DateTime(timezone=True)),
        ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=f("fk_calibration_target_id_target")
        ),
        PrimaryKeyConstraint("id", name=f("pk_calibration")),
    )
    create_index(
        f("ix_calibration_target_id_kernel_device_id"),
        "calibration",
        ["target_id", "kernel", "device", "id"],
    )


def _create_devices() -> None:
    create_table(
        "device_status",
        required("name", Text()),
        required("worker", Text()),
        required("host", Text()),
        required("fingerprint", JSON()),
        required("state", Text()),
        required("reason", Text()),
        required("busy_share", Double()),
        required("busy_secs", Double()),
        Column("job_id", Integer()),
        required("heartbeat", DateTime(timezone=True)),
        CheckConstraint(
            "state IN ('measuring', 'idle', 'apart', 'lost')",
            name=f("ck_device_status_state_known"),
        ),
        ForeignKeyConstraint(["job_id"], ["job.id"], name=f("fk_device_status_job_id_job")),
        PrimaryKeyConstraint("name", name=f("pk_device_status")),
    )
