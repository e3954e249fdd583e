"""Widen the ids of tables that grow with trials and requests, and add the progress of workers.

Revision ID: 0008

On PostgreSQL this rewrites the tables of events, picks and measurements: about a minute for ten
million rows. SQLite has had 64 bits all along.
"""

from alembic.op import add_column, alter_column, drop_column, execute, get_bind
from sqlalchemy import BigInteger, Column, DateTime, Integer
from sqlalchemy.types import TypeEngine

revision = "0008"
down_revision = "0007"
COLUMNS = (
    ("audit_event", "id"),
    ("best_record", "record_id"),
    ("build", "id"),
    ("calibration", "id"),
    ("event", "sequence"),
    ("job", "n_events"),
    ("job_failure", "record_id"),
    ("measure_feature", "record_id"),
    ("measure_record", "id"),
    ("measure_record", "pick_id"),
    ("pick", "id"),
    ("upload", "id"),
    ("worker", "id"),
)
NUMBERED = ("audit_event", "build", "calibration", "measure_record", "pick", "upload", "worker")


def upgrade() -> None:
    add_column("worker", Column("progress", DateTime(timezone=True)))
    _resize(BigInteger(), "bigint")


def downgrade() -> None:
    _resize(Integer(), "integer")
    drop_column("worker", "progress")


def _resize(type_: TypeEngine[int], sequence_type: str) -> None:
    if get_bind().dialect.name != "postgresql":
        return
    for table, column in COLUMNS:
        alter_column(table, column, type_=type_)
    # A sequence has a type, and by that a largest number, of its own.
    for table in NUMBERED:
        execute(f"ALTER SEQUENCE {table}_id_seq AS {sequence_type}")
