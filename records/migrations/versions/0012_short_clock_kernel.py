"""Forget the first times of the clock kernel: it is shorter now (decision 0087).

The next job of a target stores the new reference. Latencies stay as they are.

Revision ID: 0012
"""

from alembic.op import execute

revision = "0012"
down_revision = "0011"
_FORGET = "UPDATE target SET clock_secs = NULL"


def upgrade() -> None:
    execute(_FORGET)


def downgrade() -> None:
    execute(_FORGET)
