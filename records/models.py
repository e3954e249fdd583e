"""Tables of networks, tasks, jobs, picks and measure records."""

from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

ERROR_KINDS = (
    "build_error",
    "build_timeout",
    "run_error",
    "run_timeout",
    "wrong_result",
    "worker_lost",
)
JobState = Literal["queued", "running", "paused", "done", "failed", "cancelled"]


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time in UTC; SQLite alone would return a naive one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Convert to UTC; a naive time counts as local, as in Python."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Attach UTC where the database stores no zone."""
        if value is None or value.tzinfo is not None:
            return None if value is None else value.astimezone(UTC)
        return value.replace(tzinfo=UTC)


def now() -> datetime:
    """Return the current time, aware, in UTC."""
    return datetime.now(UTC)


# Without none_as_null, None would be stored as the JSON text "null", and IS NULL would be false.
_JSON = JSON(none_as_null=True)


# Of tables that grow with every trial or request. PostgreSQL spends numbers on rows that conflict,
# too. SQLite numbers rows by INTEGER alone, which has 64 bits there. Numbers up to 2**53 are exact
# in JSON and JavaScript.
BIG = BigInteger().with_variant(Integer(), "sqlite")


class Base(DeclarativeBase):
    """Base of all tables, with the same column types and constraint names on every database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012  SQLAlchemy declares it so
        str: Text,
        float: Double,
        bytes: LargeBinary,
        datetime: UtcDateTime,
        dict[str, Any]: _JSON,
        list[str]: _JSON,
        list[float]: _JSON,
    }


class Network(Base):
    """A model with fixed input shapes; ``sha256`` is the hash of the cleaned model."""

    __tablename__ = "network"

    id: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    inputs: Mapped[dict[str, Any]]  # {name: {"shape": [...], "dtype": "float32"}}
    created: Mapped[datetime] = mapped_column(default=now)


class Workload(Base):
    """One subgraph in the IR of one engine; ``profile`` holds what roofs and similarity need."""

    __tablename__ = "workload"
    __table_args__ = (UniqueConstraint("hash", "engine"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str]
    engine: Mapped[str]
    ir: Mapped[bytes]
    flop: Mapped[float]
    name: Mapped[str]
    profile: Mapped[dict[str, Any] | None]


class Target(Base):
    """A compilation target and a device; ``fingerprint`` identifies the pair.

    ``clock_secs`` is the first time of the engine's clock kernel on the device; clock factors
    refer to it.
    ``peaks`` are the operations and bytes per second that the device reaches at most.
    """

    __tablename__ = "target"

    id: Mapped[int] = mapped_column(primary_key=True)
    spec: Mapped[str]
    device: Mapped[dict[str, Any]]
    fingerprint: Mapped[str] = mapped_column(unique=True)
    clock_secs: Mapped[float | None]
    peaks: Mapped[dict[str, Any] | None]


class Task(Base):
    """A workload on a target: the unit that trials are spent on."""

    __tablename__ = "task"
    __table_args__ = (UniqueConstraint("workload_id", "target_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"))
    target_id: Mapped[int] = mapped_column(ForeignKey("target.id"), index=True)


class NetworkTask(Base):
    """A task of a network; ``weight`` is the number of times its workload occurs there."""

    __tablename__ = "network_task"
    __table_args__ = (CheckConstraint("weight >= 1", "weight_positive"),)

    network_id: Mapped[int] = mapped_column(ForeignKey("network.id"), primary_key=True)
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"), primary_key=True, index=True)
    weight: Mapped[int]
    position: Mapped[int]


class Extraction(Base):
    """The extraction of a network into tasks for a target."""

    __tablename__ = "extraction"

    network_id: Mapped[int] = mapped_column(ForeignKey("network.id"), primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("target.id"), primary_key=True)
    notes: Mapped[list[str]]
    n_kernel_calls: Mapped[int]
    extra: Mapped[dict[str, Any]]


class Job(Base):
    """A request to tune a network for a target within a budget; a null budget is unlimited.

    ``reached_trials`` is the largest number of trials counted as spent when the job was done;
    ``virtual_secs`` is the virtual time by which devices are shared between jobs.

    A job of the service has a ``request``, identified by the hash ``submission``; until its model
    is loaded it has neither network nor target. ``n_events`` counts its events, see
    :mod:`records.tuning.events`. A deleted job is ``hidden``, because its records refer to it.
    :mod:`records.tuning.attempts` explains ``attempts`` and ``quarantined``.

    ``owner`` is the name of the token that submitted it and ``project`` that token's project; a
    job without an owner belongs to the administrators, see :mod:`records.service.owners.access`.
    """

    __tablename__ = "job"
    __table_args__ = (
        UniqueConstraint("network_id", "target_id", "objective", "seed", "submission"),
        Index(
            "uq_job_submission",
            "submission",
            unique=True,
            sqlite_where=text("submission <> ''"),
            postgresql_where=text("submission <> ''"),
        ),
        Index(None, "state"),
        Index(None, "owner"),
        Index(None, "project"),
        CheckConstraint(
            "state IN ('queued', 'running', 'paused', 'done', 'failed', 'cancelled')",
            "state_known",
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    network_id: Mapped[int | None] = mapped_column(ForeignKey("network.id"))
    target_id: Mapped[int | None] = mapped_column(ForeignKey("target.id"))
    name: Mapped[str | None]
    request: Mapped[dict[str, Any] | None]
    submission: Mapped[str] = mapped_column(default="")
    hidden: Mapped[bool] = mapped_column(default=False)
    owner: Mapped[str | None]
    project: Mapped[str | None]
    n_events: Mapped[int] = mapped_column(BIG, default=0)
    attempts: Mapped[int] = mapped_column(default=0)
    quarantined: Mapped[bool] = mapped_column(default=False)
    objective: Mapped[str]
    seed: Mapped[int] = mapped_column(BigInteger)
    budget_trials: Mapped[int | None]
    budget_secs: Mapped[float | None]
    spent_secs: Mapped[float] = mapped_column(default=0.0)
    reached_trials: Mapped[int | None]
    virtual_secs: Mapped[float] = mapped_column(default=0.0)
    priority: Mapped[int] = mapped_column(default=0)
    state: Mapped[JobState] = mapped_column(Text, default="queued")
    settings: Mapped[dict[str, Any]]
    message: Mapped[str | None]
    note: Mapped[str | None]  # of people, about the job
    created: Mapped[datetime] = mapped_column(default=now)
    updated: Mapped[datetime] = mapped_column(default=now, onupdate=now)


class JobTag(Base):
    """A word by which people find a job."""

    __tablename__ = "job_tag"

    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"), primary_key=True)
    tag: Mapped[str] = mapped_column(primary_key=True, index=True)


class Pick(Base):
    """A decision to spend a round on a task, with its reasons; ``done`` once it is complete.

    ``secs`` is the duration of the round, search and builds included, in the run that ended it.
    The totals of its trials are stored here, so that views never scan ``measure_record``; see
    :class:`records.tuning.rounds.RoundResult`. ``total_secs`` and ``job_trials`` are the latency of
    the network and the trials of the job after the round. :mod:`records.tuning.attempts` explains
    ``attempts``.
    """

    __tablename__ = "pick"
    __table_args__ = (
        UniqueConstraint("job_id", "sequence"),
        Index(
            "ix_pick_open",
            "job_id",
            "sequence",
            sqlite_where=text("done = 0"),
            postgresql_where=text("NOT done"),
        ),
    )

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"))
    sequence: Mapped[int]
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"), index=True)
    n_trials: Mapped[int]
    terms: Mapped[dict[str, Any]]
    done: Mapped[bool] = mapped_column(default=False)
    secs: Mapped[float | None]
    n_measured: Mapped[int] = mapped_column(default=0)
    n_failed: Mapped[int] = mapped_column(default=0)
    n_timeouts: Mapped[int] = mapped_column(default=0)
    best_secs: Mapped[float | None]
    run_secs: Mapped[float] = mapped_column(default=0.0)
    total_secs: Mapped[float | None]
    job_trials: Mapped[int | None]
    attempts: Mapped[int] = mapped_column(default=0)
    created: Mapped[datetime] = mapped_column(default=now)


class ImportedRound(Base):
    """Totals of the records of a task that no pick paid for, as one round."""

    __tablename__ = "imported_round"

    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"), primary_key=True)
    n_measured: Mapped[int]
    n_failed: Mapped[int]
    n_timeouts: Mapped[int]
    best_secs: Mapped[float | None]
    run_secs: Mapped[float]


class JobFailure(Base):
    """Number of trials of a job that failed with one error kind, and the last of them."""

    __tablename__ = "job_failure"

    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"), primary_key=True)
    error_kind: Mapped[str] = mapped_column(primary_key=True)
    n_trials: Mapped[int]
    record_id: Mapped[int] = mapped_column(BIG, ForeignKey("measure_record.id"))


class JobStatus(Base):
    """The status of a job as its coordinator last reported it.

    ``gains`` maps each task id to the expected reduction of the objective by a round on the task.
    """

    __tablename__ = "job_status"

    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"), primary_key=True)
    phase: Mapped[str]
    task_id: Mapped[int | None] = mapped_column(ForeignKey("task.id"))
    gains: Mapped[dict[str, Any]]
    spent_trials: Mapped[int]
    outlook: Mapped[dict[str, Any] | None]
    updated: Mapped[datetime] = mapped_column(default=now, onupdate=now)


class Event(Base):
    """An event of a job; ``sequence`` counts from 1 without gaps."""

    __tablename__ = "event"

    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"), primary_key=True)
    sequence: Mapped[int] = mapped_column(BIG, primary_key=True, autoincrement=False)
    kind: Mapped[str]
    data: Mapped[dict[str, Any]]
    created: Mapped[datetime] = mapped_column(default=now)


class MeasureRecord(Base):
    """One spent trial: a trace with its samples in seconds, or with its error.

    Samples are stored as they were taken. ``latency`` is their median times ``clock_factor``, the
    speed of the device while they were taken relative to its speed at its first measurement;
    ``confirmed_factor`` is that of the final. A null factor counts as 1.
    """

    __tablename__ = "measure_record"
    __table_args__ = (
        UniqueConstraint("task_id", "trace_hash"),
        Index(None, "task_id", "latency"),
        # Failures are few: without it, a list of them reads all records.
        Index(
            "ix_measure_record_failed",
            "id",
            sqlite_where=text("error_kind IS NOT NULL"),
            postgresql_where=text("error_kind IS NOT NULL"),
        ),
        CheckConstraint("(run_secs IS NULL) <> (error_kind IS NULL)", "timed_or_failed"),
        CheckConstraint("(run_secs IS NULL) = (latency IS NULL)", "latency_of_samples"),
        CheckConstraint("NOT verified OR run_secs IS NOT NULL", "verified_has_samples"),
        CheckConstraint(
            "error_kind IN ('build_error', 'build_timeout', 'run_error', 'run_timeout',"
            " 'wrong_result', 'worker_lost')",
            "error_kind_known",
        ),
    )

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"))
    pick_id: Mapped[int | None] = mapped_column(BIG, ForeignKey("pick.id"), index=True)
    trace: Mapped[str]
    trace_hash: Mapped[str]
    module_hash: Mapped[str | None]
    run_secs: Mapped[list[float] | None]
    latency: Mapped[float | None]  # median of run_secs times clock_factor
    clock_factor: Mapped[float | None]
    error_kind: Mapped[str | None]
    error_text: Mapped[str | None]
    verified: Mapped[bool]
    max_error: Mapped[float | None]
    confirmed_secs: Mapped[list[float] | None]  # of the final interleaved re-measurement
    confirmed_factor: Mapped[float | None]
    conditions: Mapped[dict[str, Any] | None]  # of the device while it was timed
    worker: Mapped[str]
    created: Mapped[datetime] = mapped_column(default=now)
    origin: Mapped[str | None]  # source that proposed the candidate, and its rule or variant


class Suspect(Base):
    """A candidate blamed for the loss of ``blame`` devices; see :mod:`records.tuning.suspects`."""

    __tablename__ = "suspect"

    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"), primary_key=True)
    trace_hash: Mapped[str] = mapped_column(primary_key=True)
    blame: Mapped[float]
    created: Mapped[datetime] = mapped_column(default=now)


class MeasureFeature(Base):
    """Cost model features of a record, in a separate table so that records stay narrow."""

    __tablename__ = "measure_feature"

    record_id: Mapped[int] = mapped_column(BIG, ForeignKey("measure_record.id"), primary_key=True)
    features: Mapped[bytes]


class BestRecord(Base):
    """The fastest verified record of a task; ``latency`` is its winning latency, seconds."""

    __tablename__ = "best_record"

    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"), primary_key=True)
    record_id: Mapped[int] = mapped_column(BIG, ForeignKey("measure_record.id"), unique=True)
    latency: Mapped[float]
    confirmed: Mapped[bool]


class CostModel(Base):
    """A trained cost model and the number of records it was trained on."""

    __tablename__ = "cost_model"

    target_id: Mapped[int] = mapped_column(ForeignKey("target.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    n_records: Mapped[int]
    blob: Mapped[bytes]
    created: Mapped[datetime] = mapped_column(default=now)


class Profile(Base):
    """The last profile of a network's library on a target; see :mod:`records.tuning.profiles`."""

    __tablename__ = "profile"

    network_id: Mapped[int] = mapped_column(ForeignKey("network.id"), primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("target.id"), primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True, default="")
    content: Mapped[dict[str, Any]]
    created: Mapped[datetime] = mapped_column(default=now)


class Library(Base):
    """A compiled network in the build cache."""

    __tablename__ = "library"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(unique=True)
    network_id: Mapped[int | None] = mapped_column(ForeignKey("network.id"))
    target_id: Mapped[int] = mapped_column(ForeignKey("target.id"))
    manifest: Mapped[dict[str, Any]]
    path: Mapped[str]
    created: Mapped[datetime] = mapped_column(default=now)
