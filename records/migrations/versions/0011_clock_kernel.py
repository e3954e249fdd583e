"""Forget the first times of the clock kernel: it is another kernel now (decision 0083).

The next job of a target stores the new reference. Latencies stay as they are.

Revision ID: 0011
"""

from alembic.op import execute

revision = "0011"
down_revision = "0010"
_FORGET = "UPDATE target SET clock_secs = NULL"


def upgrade() -> None:
    execute(_FORGET)


def downgrade() -> None:
    execute(_FORGET)
