"""Add the last profile of each network on a target.

Revision ID: 0009
"""

from functools import partial
from typing import Any

from alembic.op import create_table, drop_table, f
from sqlalchemy import JSON, Column, DateTime, ForeignKeyConstraint, Integer, PrimaryKeyConstraint

revision = "0009"
down_revision = "0008"
required = partial(Column[Any], nullable=False)


def upgrade() -> None:
    create_table(
        "profile",
        required("network_id", Integer()),
        required("target_id", Integer()),
        required("content", JSON(none_as_null=True)),
        required("created", DateTime(timezone=True)),
        ForeignKeyConstraint(
            ["network_id"], ["network.id"], name=f("fk_profile_network_id_network")
        ),
        ForeignKeyConstraint(["target_id"], ["target.id"], name=f("fk_profile_target_id_target")),
        PrimaryKeyConstraint("network_id", "target_id", name=f("pk_profile")),
    )


def downgrade() -> None:
    drop_table("profile")
