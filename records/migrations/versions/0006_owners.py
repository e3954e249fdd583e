"""Add owners of jobs, projects and quotas of tokens, and the sizes of uploads.

A job belongs to the token whose request is the first in the audit log. Jobs of command lines, and
those of a service without tokens, stay without an owner.

Revision ID: 0006
"""

import hashlib
from functools import partial
from typing import Any

from alembic.op import (
    add_column,
    create_index,
    create_table,
    drop_column,
    drop_index,
    drop_table,
    execute,
    f,
    get_bind,
)
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    Text,
    text,
)

revision = "0006"
down_revision = "0005"
required = partial(Column[Any], nullable=False)


def upgrade() -> None:
    add_column("job", Column("owner", Text()))
    add_column("job", Column("project", Text()))
    create_index(f("ix_job_owner"), "job", ["owner"])
    create_index(f("ix_job_project"), "job", ["project"])
    add_column("api_token", Column("project", Text()))
    add_column("api_token", Column("quotas", JSON()))
    create_table(
        "upload",
        required("id", Integer()),
        required("job_id", Integer()),
        Column("owner", Text()),
        required("sha256", Text()),
        required("n_bytes", BigInteger()),
        required("created", DateTime(timezone=True)),
        ForeignKeyConstraint(["job_id"], ["job.id"], name=f("fk_upload_job_id_job")),
        PrimaryKeyConstraint("id", name=f("pk_upload")),
    )
    create_index(f("ix_upload_job_id"), "upload", ["job_id"])
    create_index(f("ix_upload_owner_created"), "upload", ["owner", "created"])
    _fill()


def downgrade() -> None:
    drop_table("upload")
    drop_column("api_token", "quotas")
    drop_column("api_token", "project")
    drop_index(f("ix_job_project"), "job")
    drop_index(f("ix_job_owner"), "job")
    drop_column("job", "project")
    drop_column("job", "owner")


def _fill() -> None:
    """Give each job of the service the token that requested it first."""
    execute(
        """
        UPDATE job SET owner = (
            SELECT audit_event.subject FROM audit_event
            WHERE audit_event.job_id = job.id AND audit_event.action = 'tune'
            ORDER BY audit_event.id LIMIT 1)
        WHERE submission <> ''
        """
    )
    # Only tokens own jobs: a service without tokens calls every sender anonymous.
    execute(
        "UPDATE job SET owner = NULL"
        " WHERE owner = 'anonymous' OR owner NOT IN (SELECT name FROM api_token)"
    )
    connection = get_bind()
    owned = text("SELECT id, owner, submission FROM job WHERE owner IS NOT NULL")
    for job_id, owner, submission in connection.execute(owned).all():
        # As records.submissions.owned() names them: equal requests of two owners are two jobs.
        named = hashlib.sha256(f"{owner}\n{submission}".encode()).hexdigest()
        connection.execute(
            text("UPDATE job SET submission = :named WHERE id = :id"),
            {"named": named, "id": job_id},
        )
