"""Create the tables.

Revision ID: version_0_1
"""

from functools import partial
from typing import Any

from alembic.op import create_index, create_table, f
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    Text,
    UniqueConstraint,
    text,
)

# Databases from before version 0.1 have other revisions and tables.
revision = "version_0_1"
down_revision = None
BIG = BigInteger().with_variant(Integer(), "sqlite")
TIME = DateTime(timezone=True)
required = partial(Column[Any], nullable=False)


def upgrade() -> None:
    create_table(
        "api_token",
        Column("id", Integer, primary_key=True),
        required("name", Text, unique=True),
        required("digest", Text, unique=True),
        required("scopes", JSON),
        Column("project", Text),
        Column("quotas", JSON),
        required("created", TIME),
        Column("expires", TIME),
        Column("revoked", TIME),
        Column("last_used", TIME),
    )
    create_table(
        "lease",
        Column("name", Text, primary_key=True),
        required("holder", Text),
        required("epoch", BigInteger),
        required("expires", TIME),
    )
    create_table(
        "network",
        Column("id", Integer, primary_key=True),
        required("sha256", Text, unique=True),
        required("name", Text),
        required("inputs", JSON),
        required("created", TIME),
    )
    create_table(
        "target",
        Column("id", Integer, primary_key=True),
        required("spec", Text),
        required("device", JSON),
        required("fingerprint", Text, unique=True),
        Column("clock_secs", Double),
        Column("peaks", JSON),
    )
    create_table(
        "workload",
        Column("id", Integer, primary_key=True),
        required("hash", Text),
        required("engine", Text),
        required("ir", LargeBinary),
        required("flop", Double),
        required("name", Text),
        Column("profile", JSON),
        UniqueConstraint("hash", "engine"),
    )
    create_table(
        "calibration",
        Column("id", BIG, primary_key=True),
        required("device", Text),
        required("host", Text),
        required("target_id", Integer, ForeignKey("target.id")),
        required("kernel", Text),
        required("secs", Double),
        required("created", TIME),
    )
    create_index(
        f("ix_calibration_target_id_kernel_device_id"),
        "calibration",
        ["target_id", "kernel", "device", "id"],
    )
    create_table(
        "cost_model",
        Column("target_id", Integer, ForeignKey("target.id"), primary_key=True),
        Column("kind", Text, primary_key=True),
        required("n_records", Integer),
        required("blob", LargeBinary),
        required("created", TIME),
    )
    create_table(
        "extraction",
        Column("network_id", Integer, ForeignKey("network.id"), primary_key=True),
        Column("target_id", Integer, ForeignKey("target.id"), primary_key=True),
        required("notes", JSON),
        required("n_kernel_calls", Integer),
        required("extra", JSON),
    )
    create_table(
        "job",
        Column("id", Integer, primary_key=True),
        Column("network_id", Integer, ForeignKey("network.id")),
        Column("target_id", Integer, ForeignKey("target.id")),
        Column("name", Text),
        Column("request", JSON),
        required("submission", Text),
        required("hidden", Boolean),
        Column("owner", Text),
        Column("project", Text),
        required("n_events", BIG),
        required("attempts", Integer),
        required("quarantined", Boolean),
        required("objective", Text),
        required("seed", BigInteger),
        Column("budget_trials", Integer),
        Column("budget_secs", Double),
        required("spent_secs", Double),
        Column("reached_trials", Integer),
        required("virtual_secs", Double),
        required("priority", Integer),
        required("state", Text),
        required("settings", JSON),
        Column("message", Text),
        Column("note", Text),
        required("created", TIME),
        required("updated", TIME),
        CheckConstraint(
            "state IN ('queued', 'running', 'paused', 'done', 'failed', 'cancelled')", "state_known"
        ),
        UniqueConstraint("network_id", "target_id", "objective", "seed", "submission"),
    )
    create_index(f("ix_job_owner"), "job", ["owner"])
    create_index(f("ix_job_project"), "job", ["project"])
    create_index(f("ix_job_state"), "job", ["state"])
    create_index(
        "uq_job_submission",
        "job",
        ["submission"],
        unique=True,
        sqlite_where=text("submission <> ''"),
        postgresql_where=text("submission <> ''"),
    )
    create_table(
        "library",
        Column("id", Integer, primary_key=True),
        required("key", Text, unique=True),
        Column("network_id", Integer, ForeignKey("network.id")),
        required("target_id", Integer, ForeignKey("target.id")),
        required("manifest", JSON),
        required("path", Text),
        required("created", TIME),
    )
    create_table(
        "profile",
        Column("network_id", Integer, ForeignKey("network.id"), primary_key=True),
        Column("target_id", Integer, ForeignKey("target.id"), primary_key=True),
        Column("owner", Text, primary_key=True),
        required("content", JSON),
        required("created", TIME),
    )
    create_table(
        "task",
        Column("id", Integer, primary_key=True),
        required("workload_id", Integer, ForeignKey("workload.id")),
        required("target_id", Integer, ForeignKey("target.id"), index=True),
        UniqueConstraint("workload_id", "target_id"),
    )
    create_table(
        "audit_event",
        Column("id", BIG, primary_key=True),
        required("created", TIME, index=True),
        required("subject", Text),
        required("address", Text),
        required("action", Text),
        Column("job_id", Integer, ForeignKey("job.id"), index=True),
        required("detail", JSON),
    )
    create_table(
        "build",
        Column("id", BIG, primary_key=True),
        required("job_id", Integer, ForeignKey("job.id")),
        required("model_index", Integer),
        required("strict", Boolean),
        required("profile", Boolean),
        required("state", Text, index=True),
        Column("message", Text),
        required("attempts", Integer),
        required("quarantined", Boolean),
        Column("library_key", Text),
        Column("archive", Text),
        Column("sha256", Text),
        Column("n_bytes", BigInteger),
        required("created", TIME),
        required("updated", TIME),
        CheckConstraint("state IN ('queued', 'running', 'done', 'failed')", "state_known"),
    )
    create_index(f("ix_build_job_id_id"), "build", ["job_id", "id"])
    create_table(
        "device_status",
        Column("name", Text, primary_key=True),
        required("worker", Text),
        required("host", Text),
        required("fingerprint", JSON),
        required("state", Text),
        required("reason", Text),
        required("busy_share", Double),
        required("busy_secs", Double),
        Column("job_id", Integer, ForeignKey("job.id")),
        required("heartbeat", TIME),
        CheckConstraint("state IN ('measuring', 'idle', 'apart', 'lost')", "state_known"),
    )
    create_table(
        "event",
        Column("job_id", Integer, ForeignKey("job.id"), primary_key=True),
        Column("sequence", BIG, primary_key=True, autoincrement=False),
        required("kind", Text),
        required("data", JSON),
        required("created", TIME),
    )
    create_table(
        "idempotency_key",
        Column("subject", Text, primary_key=True),
        Column("key", Text, primary_key=True),
        required("fingerprint", Text),
        required("job_id", Integer, ForeignKey("job.id")),
        required("created", TIME),
    )
    create_table(
        "imported_round",
        Column("task_id", Integer, ForeignKey("task.id"), primary_key=True),
        required("n_measured", Integer),
        required("n_failed", Integer),
        required("n_timeouts", Integer),
        Column("best_secs", Double),
        required("run_secs", Double),
    )
    create_table(
        "job_status",
        Column("job_id", Integer, ForeignKey("job.id"), primary_key=True),
        required("phase", Text),
        Column("task_id", Integer, ForeignKey("task.id")),
        required("gains", JSON),
        required("spent_trials", Integer),
        Column("outlook", JSON),
        required("updated", TIME),
    )
    create_table(
        "network_task",
        Column("network_id", Integer, ForeignKey("network.id"), primary_key=True),
        Column("task_id", Integer, ForeignKey("task.id"), primary_key=True, index=True),
        required("weight", Integer),
        required("position", Integer),
        CheckConstraint("weight >= 1", "weight_positive"),
    )
    create_table(
        "pick",
        Column("id", BIG, primary_key=True),
        required("job_id", Integer, ForeignKey("job.id")),
        required("sequence", Integer),
        required("task_id", Integer, ForeignKey("task.id"), index=True),
        required("n_trials", Integer),
        required("terms", JSON),
        required("done", Boolean),
        Column("secs", Double),
        required("n_measured", Integer),
        required("n_failed", Integer),
        required("n_timeouts", Integer),
        Column("best_secs", Double),
        required("run_secs", Double),
        Column("total_secs", Double),
        Column("job_trials", Integer),
        required("attempts", Integer),
        required("created", TIME),
        UniqueConstraint("job_id", "sequence"),
    )
    create_index(
        "ix_pick_open",
        "pick",
        ["job_id", "sequence"],
        sqlite_where=text("done = 0"),
        postgresql_where=text("NOT done"),
    )
    create_table(
        "suspect",
        Column("task_id", Integer, ForeignKey("task.id"), primary_key=True),
        Column("trace_hash", Text, primary_key=True),
        required("blame", Double),
        required("created", TIME),
    )
    create_table(
        "upload",
        Column("id", BIG, primary_key=True),
        required("job_id", Integer, ForeignKey("job.id"), index=True),
        Column("owner", Text),
        required("sha256", Text),
        required("n_bytes", BigInteger),
        required("sent", Boolean),
        required("created", TIME),
    )
    create_index(f("ix_upload_owner_created"), "upload", ["owner", "created"])
    create_table(
        "worker",
        Column("id", BIG, primary_key=True),
        required("name", Text, unique=True),
        required("host", Text),
        required("pid", Integer),
        required("role", Text),
        required("device", JSON),
        Column("job_id", Integer, ForeignKey("job.id")),
        required("activity", Text),
        required("busy_secs", Double),
        required("busy_share", Double),
        required("started", TIME),
        required("heartbeat", TIME),
        Column("progress", TIME),
        Column("stopped", TIME),
    )
    create_table(
        "measure_record",
        Column("id", BIG, primary_key=True),
        required("task_id", Integer, ForeignKey("task.id")),
        Column("pick_id", BIG, ForeignKey("pick.id"), index=True),
        required("trace", Text),
        required("trace_hash", Text),
        Column("module_hash", Text),
        Column("run_secs", JSON),
        Column("latency", Double),
        Column("clock_factor", Double),
        Column("error_kind", Text),
        Column("error_text", Text),
        required("verified", Boolean),
        Column("max_error", Double),
        Column("confirmed_secs", JSON),
        Column("confirmed_factor", Double),
        Column("conditions", JSON),
        required("worker", Text),
        required("created", TIME),
        Column("origin", Text),
        CheckConstraint(
            "error_kind IN ('build_error', 'build_timeout', 'run_error', 'run_timeout',"
            " 'wrong_result', 'worker_lost')",
            "error_kind_known",
        ),
        CheckConstraint("(run_secs IS NULL) = (latency IS NULL)", "latency_of_samples"),
        CheckConstraint("(run_secs IS NULL) <> (error_kind IS NULL)", "timed_or_failed"),
        CheckConstraint("NOT verified OR run_secs IS NOT NULL", "verified_has_samples"),
        UniqueConstraint("task_id", "trace_hash"),
    )
    create_index(
        "ix_measure_record_failed",
        "measure_record",
        ["id"],
        sqlite_where=text("error_kind IS NOT NULL"),
        postgresql_where=text("error_kind IS NOT NULL"),
    )
    create_index(f("ix_measure_record_task_id_latency"), "measure_record", ["task_id", "latency"])
    create_table(
        "best_record",
        Column("task_id", Integer, ForeignKey("task.id"), primary_key=True),
        required("record_id", BIG, ForeignKey("measure_record.id"), unique=True),
        required("latency", Double),
        required("confirmed", Boolean),
    )
    create_table(
        "job_failure",
        Column("job_id", Integer, ForeignKey("job.id"), primary_key=True),
        Column("error_kind", Text, primary_key=True),
        required("n_trials", Integer),
        required("record_id", BIG, ForeignKey("measure_record.id")),
    )
    create_table(
        "measure_feature",
        Column("record_id", BIG, ForeignKey("measure_record.id"), primary_key=True),
        required("features", LargeBinary),
    )
    create_table(
        "remote_device",
        Column("name", Text, primary_key=True),
        required("owner", Text),
        required("key", Text),
        required("heartbeat", TIME),
        required("n_builders", Integer),
        Column("gpu", JSON),
    )
    create_table(
        "offered_pack",
        Column("pack", Text, primary_key=True),
        required("sha256", Text),
        required("n_bytes", BigInteger),
        required("capabilities", JSON),
        required("minutes", Double),
        required("created", TIME),
        Column("ended", TIME),
        Column("gpu", JSON),
        Column("device", Text),
        Column("key", Text),
        required("n_lines", Integer),
        required("has_results", Boolean),
        required("attempts", JSON),
        Column("problem", Text),
    )
    create_table(
        "pack_portion",
        Column("pack", Text, ForeignKey("offered_pack.pack"), primary_key=True),
        Column("first_line", Integer, primary_key=True, autoincrement=False),
        required("lines", Text),
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
    create_table(
        "webhook",
        Column("job_id", Integer, ForeignKey("job.id"), primary_key=True),
        Column("of_service", Boolean, primary_key=True),
        required("url", Text),
        Column("delivery", Text),
        Column("state", Text),
        required("attempts", Integer),
        Column("attempted", TIME),
        Column("due", TIME),
        Column("status", Text),
        required("delivered", Boolean),
    )
    create_index(f("ix_webhook_due"), "webhook", ["due"])
    create_table(
        "job_tag",
        Column("job_id", Integer, ForeignKey("job.id"), primary_key=True),
        Column("tag", Text, primary_key=True, index=True),
    )
    create_table(
        "kernel_code",
        Column("record_id", BIG, ForeignKey("measure_record.id"), primary_key=True),
        Column("part", Text, primary_key=True),
        required("asked", TIME),
        required("attempts", Integer),
        Column("text", Text),
        Column("message", Text),
    )
