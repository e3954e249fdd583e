"""Create the tables of devices that measure over HTTPS.

Revision ID: remote_devices
"""

from functools import partial
from typing import Any

from alembic.op import create_index, create_table, f
from sqlalchemy import JSON, Column, DateTime, Double, LargeBinary, Text

revision = "remote_devices"
down_revision = "first_release"
required = partial(Column[Any], nullable=False)


def upgrade() -> None:
    create_table(
        "remote_device",
        Column("name", Text, primary_key=True),
        required("owner", Text),
        required("key", Text),
        required("heartbeat", DateTime(timezone=True)),
    )
    create_table(
        "remote_call",
        Column("id", Text, primary_key=True),
        required("device", Text),
        required("function", Text),
        required("arguments", LargeBinary),
        required("files", JSON),
        required("timeout_secs", Double),
        Column("key", Text),
        Column("answer", LargeBinary),
    )
    create_index(f("ix_remote_call_device"), "remote_call", ["device"])
