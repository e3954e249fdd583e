"""Add the jobs of the service, totals of picks, and the tables of the service.

Revision ID: 0003
"""

from functools import partial
from typing import Any

from alembic.op import (
    add_column,
    batch_alter_table,
    create_index,
    create_table,
    drop_column,
    drop_index,
    drop_table,
    execute,
    f,
)
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    Text,
    UniqueConstraint,
    false,
    text,
)

revision = "0003"
down_revision = "0002"
required = partial(Column[Any], nullable=False)

_JOB_KEY = ["network_id", "target_id", "objective", "seed"]
_JOB_TABLES = ("event", "job_status", "job_failure", "build", "idempotency_key")
# Totals of the records of a pick, or of those without a pick.
_TOTALS = """
    COUNT(*) AS n_measured,
    COUNT(error_kind) AS n_failed,
    SUM(CASE WHEN error_kind IN ('build_timeout', 'run_timeout') THEN 1 ELSE 0 END) AS n_timeouts,
    MIN(CASE WHEN verified THEN latency END) AS best_secs,
    COALESCE(SUM(latency), 0) AS run_secs
"""


def upgrade() -> None:
    with batch_alter_table("job") as job:
        job.alter_column("network_id", existing_type=Integer(), nullable=True)
        job.alter_column("target_id", existing_type=Integer(), nullable=True)
        job.add_column(Column("name", Text()))
        job.add_column(Column("request", JSON()))
        job.add_column(required("submission", Text(), server_default=text("''")))
        job.add_column(required("hidden", Boolean(), server_default=false()))
        job.add_column(required("n_events", Integer(), server_default="0"))
        job.drop_constraint(f("uq_job_network_id_target_id_objective_seed"), type_="unique")
        job.create_unique_constraint(
            f("uq_job_network_id_target_id_objective_seed_submission"), [*_JOB_KEY, "submission"]
        )
    create_index(f("ix_job_state"), "job", ["state"])
    where = text("submission <> ''")
    create_index(
        "uq_job_submission",
        "job",
        ["submission"],
        unique=True,
        sqlite_where=where,
        postgresql_where=where,
    )
    for name in ("n_measured", "n_failed", "n_timeouts"):
        add_column("pick", required(name, Integer(), server_default="0"))
    add_column("pick", Column("best_secs", Double()))
    add_column("pick", required("run_secs", Double(), server_default="0"))
    add_column("pick", Column("total_secs", Double()))
    add_column("pick", Column("job_trials", Integer()))
    _create_sums()
    _create_events()
    _create_access()
    _create_processes()
    _fill()


def downgrade() -> None:
    for table in (*_JOB_TABLES, "worker", "audit_event"):
        drop_table(table)
    for table in ("imported_round", "api_token", "lease"):
        drop_table(table)
    for name in (
        "job_trials",
        "total_secs",
        "run_secs",
        "best_secs",
        "n_timeouts",
        "n_failed",
        "n_measured",
    ):
        drop_column("pick", name)
    drop_index("uq_job_submission", "job")
    drop_index(f("ix_job_state"), "job")
    _drop_what_0002_cannot_hold()
    with batch_alter_table("job") as job:
        job.drop_constraint(
            f("uq_job_network_id_target_id_objective_seed_submission"), type_="unique"
        )
        job.create_unique_constraint(f("uq_job_network_id_target_id_objective_seed"), _JOB_KEY)
        for name in ("n_events", "hidden", "submission", "request", "name"):
            job.drop_column(name)
        job.alter_column("network_id", existing_type=Integer(), nullable=False)
        job.alter_column("target_id", existing_type=Integer(), nullable=False)


def _create_sums() -> None:
    create_table(
        "imported_round",
        Column(
            "task_id", Integer(), ForeignKey("task.id", name=f("fk_imported_round_task_id_task"))
        ),
        required("n_measured", Integer()),
        required("n_failed", Integer()),
        required("n_timeouts", Integer()),
        Column("best_secs", Double()),
        required("run_secs", Double()),
        PrimaryKeyConstraint("task_id", name=f("pk_imported_round")),
    )
    create_table(
        "job_failure",
        required("job_id", Integer()),
        required("error_kind", Text()),
        required("n_trials", Integer()),
        required("record_id", Integer()),
        ForeignKeyConstraint(["job_id"], ["job.id"], name=f("fk_job_failure_job_id_job")),
        ForeignKeyConstraint(
            ["record_id"], ["measure_record.id"], name=f("fk_job_failure_record_id_measure_record")
        ),
        PrimaryKeyConstraint("job_id", "error_kind", name=f("pk_job_failure")),
    )


def _create_events() -> None:
    create_table(
        "job_status",
        required("job_id", Integer()),
        required("phase", Text()),
        Column("task_id", Integer()),
        required("gains", JSON()),
        Column("total_secs", Double()),
        required("spent_trials", Integer()),
        Column("outlook", JSON()),
        required("updated", DateTime(timezone=True)),
        ForeignKeyConstraint(["job_id"], ["job.id"], name=f("fk_job_status_job_id_job")),
        ForeignKeyConstraint(["task_id"], ["task.id"], name=f("fk_job_status_task_id_task")),
        PrimaryKeyConstraint("job_id", name=f("pk_job_status")),
    )
    create_table(
        "event",
        required("job_id", Integer()),
        required("sequence", Integer()),
        required("kind", Text()),
        required("data", JSON()),
        required("created", DateTime(timezone=True)),
        ForeignKeyConstraint(["job_id"], ["job.id"], name=f("fk_event_job_id_job")),
        PrimaryKeyConstraint("job_id", "sequence", name=f("pk_event")),
    )


def _create_access() -> None:
    create_table(
        "api_token",
        required("id", Integer()),
        required("name", Text()),
        required("digest", Text()),
        required("scopes", JSON()),
        required("created", DateTime(timezone=True)),
        Column("expires", DateTime(timezone=True)),
        Column("revoked", DateTime(timezone=True)),
        Column("last_used", DateTime(timezone=True)),
        PrimaryKeyConstraint("id", name=f("pk_api_token")),
        UniqueConstraint("name", name=f("uq_api_token_name")),
        UniqueConstraint("digest", name=f("uq_api_token_digest")),
    )
    create_table(
        "audit_event",
        required("id", Integer()),
        required("created", DateTime(timezone=True)),
        required("subject", Text()),
        required("address", Text()),
        required("action", Text()),
        Column("job_id", Integer()),
        required("detail", JSON()),
        ForeignKeyConstraint(["job_id"], ["job.id"], name=f("fk_audit_event_job_id_job")),
        PrimaryKeyConstraint("id", name=f("pk_audit_event")),
    )
    create_index(f("ix_audit_event_created"), "audit_event", ["created"])
    create_index(f("ix_audit_event_job_id"), "audit_event", ["job_id"])
    create_table(
        "idempotency_key",
        required("subject", Text()),
        required("key", Text()),
        required("fingerprint", Text()),
        required("job_id", Integer()),
        required("created", DateTime(timezone=True)),
        ForeignKeyConstraint(["job_id"], ["job.id"], name=f("fk_idempotency_key_job_id_job")),
        PrimaryKeyConstraint("subject", "key", name=f("pk_idempotency_key")),
    )


def _create_processes() -> None:
    create_table(
        "lease",
        required("name", Text()),
        required("holder", Text()),
        required("epoch", BigInteger()),
        required("expires", DateTime(timezone=True)),
        PrimaryKeyConstraint("name", name=f("pk_lease")),
    )
    create_table(
        "worker",
        required("id", Integer()),
        required("name", Text()),
        required("host", Text()),
        required("pid", Integer()),
        required("role", Text()),
        required("device", JSON()),
        Column("job_id", Integer()),
        required("activity", Text()),
        required("busy_secs", Double()),
        required("busy_share", Double()),
        required("started", DateTime(timezone=True)),
        required("heartbeat", DateTime(timezone=True)),
        Column("stopped", DateTime(timezone=True)),
        ForeignKeyConstraint(["job_id"], ["job.id"], name=f("fk_worker_job_id_job")),
        PrimaryKeyConstraint("id", name=f("pk_worker")),
        UniqueConstraint("name", name=f("uq_worker_name")),
    )
    create_table(
        "build",
        required("id", Integer()),
        required("job_id", Integer()),
        required("model_index", Integer()),
        required("strict", Boolean()),
        required("state", Text()),
        Column("message", Text()),
        Column("library_key", Text()),
        Column("archive", Text()),
        Column("sha256", Text()),
        Column("n_bytes", BigInteger()),
        required("created", DateTime(timezone=True)),
        required("updated", DateTime(timezone=True)),
        CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed')", name=f("ck_build_state_known")
        ),
        ForeignKeyConstraint(["job_id"], ["job.id"], name=f("fk_build_job_id_job")),
        PrimaryKeyConstraint("id", name=f("pk_build")),
    )
    create_index(f("ix_build_job_id_id"), "build", ["job_id", "id"])
    create_index(f("ix_build_state"), "build", ["state"])


def _fill() -> None:
    """Compute the totals of the existing records."""
    execute(
        f"""
        UPDATE pick SET n_measured = sums.n_measured, n_failed = sums.n_failed,
            n_timeouts = sums.n_timeouts, best_secs = sums.best_secs, run_secs = sums.run_secs
        FROM (SELECT pick_id, {_TOTALS} FROM measure_record
              WHERE pick_id IS NOT NULL GROUP BY pick_id) AS sums
        WHERE sums.pick_id = pick.id
        """
    )
    execute(
        f"""
        INSERT INTO imported_round
            (task_id, n_measured, n_failed, n_timeouts, best_secs, run_secs)
        SELECT task_id, {_TOTALS} FROM measure_record WHERE pick_id IS NULL GROUP BY task_id
        """
    )
    execute(
        """
        INSERT INTO job_failure (job_id, error_kind, n_trials, record_id)
        SELECT pick.job_id, measure_record.error_kind, COUNT(*), MAX(measure_record.id)
        FROM measure_record JOIN pick ON pick.id = measure_record.pick_id
        WHERE measure_record.error_kind IS NOT NULL
        GROUP BY pick.job_id, measure_record.error_kind
        """
    )


def _drop_what_0002_cannot_hold() -> None:
    """Remove jobs that were never loaded, and give duplicates distinct seeds.

    To revision 0002, two submissions of one network are the same job. The later ones get their
    own seeds, so that their picks and records stay.
    """
    execute("DELETE FROM job WHERE network_id IS NULL OR target_id IS NULL")
    execute(
        """
        UPDATE job SET seed = -id WHERE submission <> '' AND EXISTS (
            SELECT 1 FROM job AS other WHERE other.id < job.id
            AND other.network_id = job.network_id AND other.target_id = job.target_id
            AND other.objective = job.objective AND other.seed = job.seed)
        """
    )
