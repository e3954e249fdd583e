"""Create the first schema.

Revision ID: 0001
"""

from functools import partial
from typing import Any

from alembic.op import create_index, create_table, drop_table, f
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Text,
    UniqueConstraint,
)

revision = "0001"
down_revision = None
required = partial(Column[Any], nullable=False)


def upgrade() -> None:
    create_table(
        "network",
        required("id", Integer()),
        required("sha256", Text()),
        required("name", Text()),
        required("inputs", JSON()),
        required("created", DateTime(timezone=True)),
        PrimaryKeyConstraint("id", name=f("pk_network")),
        UniqueConstraint("sha256", name=f("uq_network_sha256")),
    )
    create_table(
        "target",
        required("id", Integer()),
        required("spec", Text()),
        required("device", JSON()),
        required("fingerprint", Text()),
        PrimaryKeyConstraint("id", name=f("pk_target")),
        UniqueConstraint("fingerprint", name=f("uq_target_fingerprint")),
    )
    create_table(
        "workload",
        required("id", Integer()),
        required("hash", Text()),
        required("engine", Text()),
        required("ir", LargeBinary()),
        required("flop", Double()),
        required("name", Text()),
        PrimaryKeyConstraint("id", name=f("pk_workload")),
        UniqueConstraint("hash", "engine", name=f("uq_workload_hash_engine")),
    )
    create_table(
        "cost_model",
        required("target_id", Integer()),
        required("kind", Text()),
        required("n_records", Integer()),
        required("blob", LargeBinary()),
        required("created", DateTime(timezone=True)),
        ForeignKeyConstraint(["target_id"], ["target.id"], name=f("fk_cost_model_target_id")),
        PrimaryKeyConstraint("target_id", "kind", name=f("pk_cost_model")),
    )
    create_table(
        "extraction",
        required("network_id", Integer()),
        required("target_id", Integer()),
        required("notes", JSON()),
        required("n_kernel_calls", Integer()),
        required("extra", JSON()),
        ForeignKeyConstraint(["network_id"], ["network.id"], name=f("fk_extraction_network_id")),
        ForeignKeyConstraint(["target_id"], ["target.id"], name=f("fk_extraction_target_id")),
        PrimaryKeyConstraint("network_id", "target_id", name=f("pk_extraction")),
    )
    create_table(
        "job",
        required("id", Integer()),
        required("network_id", Integer()),
        required("target_id", Integer()),
        required("objective", Text()),
        required("seed", BigInteger()),
        Column("budget_trials", Integer()),
        Column("budget_secs", Double()),
        required("spent_secs", Double()),
        required("priority", Integer()),
        required("state", Text()),
        required("settings", JSON()),
        Column("message", Text()),
        required("created", DateTime(timezone=True)),
        required("updated", DateTime(timezone=True)),
        CheckConstraint(
            "state IN ('queued', 'running', 'paused', 'done', 'failed', 'cancelled')",
            name=f("ck_job_state_known"),
        ),
        ForeignKeyConstraint(["network_id"], ["network.id"], name=f("fk_job_network_id")),
        ForeignKeyConstraint(["target_id"], ["target.id"], name=f("fk_job_target_id")),
        PrimaryKeyConstraint("id", name=f("pk_job")),
        UniqueConstraint(
            "network_id",
            "target_id",
            "objective",
            "seed",
            name=f("uq_job_network_id_target_id_objective_seed"),
        ),
    )
    create_table(
        "library",
        required("id", Integer()),
        required("key", Text()),
        Column("network_id", Integer()),
        required("target_id", Integer()),
        required("manifest", JSON()),
        required("path", Text()),
        required("created", DateTime(timezone=True)),
        ForeignKeyConstraint(["network_id"], ["network.id"], name=f("fk_library_network_id")),
        ForeignKeyConstraint(["target_id"], ["target.id"], name=f("fk_library_target_id")),
        PrimaryKeyConstraint("id", name=f("pk_library")),
        UniqueConstraint("key", name=f("uq_library_key")),
    )
    create_table(
        "task",
        required("id", Integer()),
        required("workload_id", Integer()),
        required("target_id", Integer()),
        ForeignKeyConstraint(["target_id"], ["target.id"], name=f("fk_task_target_id")),
        ForeignKeyConstraint(["workload_id"], ["workload.id"], name=f("fk_task_workload_id")),
        PrimaryKeyConstraint("id", name=f("pk_task")),
        UniqueConstraint("workload_id", "target_id", name=f("uq_task_workload_id_target_id")),
    )
    create_index(f("ix_task_target_id"), "task", ["target_id"])
    create_table(
        "network_task",
        required("network_id", Integer()),
        required("task_id", Integer()),
        required("weight", Integer()),
        required("position", Integer()),
        CheckConstraint("weight >= 1", name=f("ck_network_task_weight_positive")),
        ForeignKeyConstraint(["network_id"], ["network.id"], name=f("fk_network_task_network_id")),
        ForeignKeyConstraint(["task_id"], ["task.id"], name=f("fk_network_task_task_id")),
        PrimaryKeyConstraint("network_id", "task_id", name=f("pk_network_task")),
    )
    create_index(f("ix_network_task_task_id"), "network_task", ["task_id"])
    create_table(
        "pick",
        required("id", Integer()),
        required("job_id", Integer()),
        required("sequence", Integer()),
        required("task_id", Integer()),
        required("n_trials", Integer()),
        required("terms", JSON()),
        required("done", Boolean()),
        required("created", DateTime(timezone=True)),
        ForeignKeyConstraint(["job_id"], ["job.id"], name=f("fk_pick_job_id")),
        ForeignKeyConstraint(["task_id"], ["task.id"], name=f("fk_pick_task_id")),
        PrimaryKeyConstraint("id", name=f("pk_pick")),
        UniqueConstraint("job_id", "sequence", name=f("uq_pick_job_id_sequence")),
    )
    create_index(f("ix_pick_task_id"), "pick", ["task_id"])
    create_table(
        "measure_record",
        required("id", Integer()),
        required("task_id", Integer()),
        Column("pick_id", Integer()),
        required("trace", Text()),
        required("trace_hash", Text()),
        Column("module_hash", Text()),
        Column("run_secs", JSON()),
        Column("latency", Double()),
        Column("error_kind", Text()),
        Column("error_text", Text()),
        required("verified", Boolean()),
        Column("max_error", Double()),
        Column("confirmed_secs", JSON()),
        required("worker", Text()),
        required("created", DateTime(timezone=True)),
        CheckConstraint(
            "error_kind IN ('build_error', 'build_timeout', 'run_error', 'run_timeout',"
            " 'wrong_result', 'worker_lost')",
            name=f("ck_measure_record_error_kind_known"),
        ),
        CheckConstraint(
            "(run_secs IS NULL) <> (error_kind IS NULL)",
            name=f("ck_measure_record_timed_or_failed"),
        ),
        CheckConstraint(
            "(run_secs IS NULL) = (latency IS NULL)", name=f("ck_measure_record_latency_of_samples")
        ),
        CheckConstraint(
            "NOT verified OR run_secs IS NOT NULL", name=f("ck_measure_record_verified_has_samples")
        ),
        ForeignKeyConstraint(["pick_id"], ["pick.id"], name=f("fk_measure_record_pick_id")),
        ForeignKeyConstraint(["task_id"], ["task.id"], name=f("fk_measure_record_task_id")),
        PrimaryKeyConstraint("id", name=f("pk_measure_record")),
        UniqueConstraint("task_id", "trace_hash", name=f("uq_measure_record_task_id_trace_hash")),
    )
    create_index(f("ix_measure_record_pick_id"), "measure_record", ["pick_id"])
    create_index(f("ix_measure_record_task_id_latency"), "measure_record", ["task_id", "latency"])
    create_table(
        "best_record",
        required("task_id", Integer()),
        required("record_id", Integer()),
        required("latency", Double()),
        required("confirmed", Boolean()),
        ForeignKeyConstraint(
            ["record_id"], ["measure_record.id"], name=f("fk_best_record_record_id")
        ),
        ForeignKeyConstraint(["task_id"], ["task.id"], name=f("fk_best_record_task_id")),
        PrimaryKeyConstraint("task_id", name=f("pk_best_record")),
        UniqueConstraint("record_id", name=f("uq_best_record_record_id")),
    )
    create_table(
        "measure_feature",
        required("record_id", Integer()),
        required("features", LargeBinary()),
        ForeignKeyConstraint(
            ["record_id"], ["measure_record.id"], name=f("fk_measure_feature_record_id")
        ),
        PrimaryKeyConstraint("record_id", name=f("pk_measure_feature")),
    )


def downgrade() -> None:
    for table in (
        "library",
        "cost_model",
        "best_record",
        "measure_feature",
        "measure_record",
        "pick",
        "job",
        "extraction",
        "network_task",
        "task",
        "target",
        "workload",
        "network",
    ):
        drop_table(table)
