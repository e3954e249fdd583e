"""Databases full of generated records: millions of rows, made by the database itself.

Every 64 records are one pick; picks cycle through the tasks, so the records of a task are
scattered as after real tuning. A tenth of the trials failed. The traces of best records
are as long as real ones; the others are shorter, so that ten million fit on a disk.
"""

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, make_url

from records import database

TRIALS_PER_PICK = 64
ENGINE = "tuner.engines.relax.worker"
_BEST_TRACE_BYTES = 1_800
_CHUNK = 500_000
_WHEN = "'2026-01-02 03:04:05.000000'"
_SPEC = '{"kind":"llvm","mcpu":"generic","num-cores":2}'
_TERMS = (
    '{"reason": "gradient", "newest_record": 1090, "backward": 0.0, "optimistic": -8.852e-06,'
    ' "similarity": 0.0001174986, "objective_weight": 2.0, "gain": 1.4163e-05, "cost": 1.0065,'
    ' "epsilon_draw": 0.545, "runner_up": 29, "runner_up_gain": 1.4018e-05}'
)
_GAINS = '{"1": 1.5e-05, "2": 1.4e-05}'


@dataclass(frozen=True)
class Filling:
    """Generated content of a database.

    Attributes:
        n_records: Number of measure records.
        n_tasks: Number of tasks with records; a multiple of ``tasks_per_job``.
        tasks_per_job: Number of tasks of each network, which has one job.
        trace_bytes: Length of the trace of a record that is not the best of its task.
        events: True if every trial is an event as well.
    """

    n_records: int
    n_tasks: int
    tasks_per_job: int = 200
    trace_bytes: int = 200
    events: bool = False

    @property
    def n_picks(self) -> int:
        """Number of picks that bought the records."""
        return -(-self.n_records // TRIALS_PER_PICK)

    @property
    def n_jobs(self) -> int:
        """Number of jobs, and of networks."""
        return self.n_tasks // self.tasks_per_job


def workload_hash(number: int) -> str:
    """Return the hash of a generated workload, the first of which is 0."""
    return f"{number * 2_654_435_761 % 2**32:016x}"


def open_filled(url: str, filling: Filling) -> Engine:
    """Open a database, and fill it if it is empty.

    Raises:
        ValueError: If it holds another number of records.
    """
    engine = database.open_database(url)
    with engine.connect() as connection:
        newest = connection.exec_driver_sql("SELECT MAX(id) FROM measure_record").scalar()
    if newest is None:
        engine.dispose()
        _fill(url, filling)
    elif newest != filling.n_records:
        raise ValueError(f"{url} holds {newest} records, not {filling.n_records}; choose another")
    return engine


def analysed(connection: Connection, sql: str, parameters: Any) -> list[str]:
    """Return the plan of a statement, one line for each step."""
    command = "EXPLAIN QUERY PLAN" if connection.dialect.name == "sqlite" else "EXPLAIN"
    rows = connection.exec_driver_sql(f"{command} {sql}", parameters)
    return [str(row[-1]).strip() for row in rows]


def scans(plan: list[str]) -> list[str]:
    """Return the steps of a plan that read a whole table."""
    return [step for step in plan if step.startswith("SCAN") or "Seq Scan" in step]


def _fill(url: str, filling: Filling) -> None:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        _fill_sqlite(str(parsed.database), filling)
    else:
        _fill_postgresql(url, filling)


def _fill_sqlite(path: str, filling: Filling) -> None:
    import sqlite3

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # An interrupted filling starts over, so nothing has to be durable.
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-1500000"):
            connection.execute(f"PRAGMA {pragma}")
        _insert_all(connection, filling, _Sqlite())
        connection.execute("PRAGMA journal_mode=WAL")


def _fill_postgresql(url: str, filling: Filling) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        # Foreign keys are right by construction; checking them row by row takes minutes.
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        _insert_all(connection, filling, _Postgresql())
        for table in ("workload", "task", "network_task", "pick", "measure_record"):
            named = f"pg_get_serial_sequence('{table}', 'id')"
            if table != "network_task":
                connection.execute(f"SELECT setval({named}, (SELECT MAX(id) FROM {table}))")
        connection.execute("VACUUM ANALYZE")


class _Sqlite:
    """SQL in the dialect of SQLite."""

    @staticmethod
    def series(first: int, end: int) -> str:
        """Return rows with ``i`` from ``first`` to ``end - 1``."""
        return (
            f"(WITH RECURSIVE s(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM s"
            f" WHERE i + 1 < {end}) SELECT i FROM s) AS series"
        )

    @staticmethod
    def json(text: str) -> str:
        """Return an expression that reads text as JSON."""
        return text

    @staticmethod
    def hexadecimal(number: str, width: int) -> str:
        """Return the hexadecimal digits of a number."""
        return f"printf('%0{width}x', {number})"

    @staticmethod
    def padded(text: str, width: int) -> str:
        """Return text padded to a width."""
        return f"substr({text} || hex(zeroblob({width})), 1, {width})"


class _Postgresql:
    """SQL in the dialect of PostgreSQL."""

    @staticmethod
    def series(first: int, end: int) -> str:
        """Return rows with ``i`` from ``first`` to ``end - 1``."""
        return f"generate_series({first}::bigint, {end - 1}::bigint) AS series(i)"

    @staticmethod
    def json(text: str) -> str:
        """Return an expression that reads text as JSON."""
        return f"CAST({text} AS json)"

    @staticmethod
    def hexadecimal(number: str, width: int) -> str:
        """Return the hexadecimal digits of a number."""
        return f"lpad(to_hex({number}), {width}, '0')"

    @staticmethod
    def padded(text: str, width: int) -> str:
        """Return text padded to a width."""
        return f"rpad({text}, {width}, '0')"


_Sql = _Sqlite | _Postgresql


def _insert_all(connection: Any, filling: Filling, sql: _Sql) -> None:
    for statement in (*_networks(filling, sql), *_jobs(filling, sql), _picks(filling, sql)):
        connection.execute(statement)
    for first in range(0, filling.n_records, _CHUNK):
        end = min(first + _CHUNK, filling.n_records)
        connection.execute(_records(filling, sql, first, end))
    for statement in (*_bests(sql), *_sums(filling, sql)):
        connection.execute(statement)


def _networks(filling: Filling, sql: _Sql) -> tuple[str, ...]:
    jobs, tasks = sql.series(0, filling.n_jobs), sql.series(0, filling.n_tasks)
    hashed = sql.hexadecimal("i * 2654435761 % 4294967296", 16)
    per_job = filling.tasks_per_job
    return (
        f"INSERT INTO target (id, spec, device, fingerprint) VALUES (1, '{_SPEC}',"
        f""" {sql.json("'" + '{"name": "Generated CPU"}' + "'")}, 'generated')""",
        "INSERT INTO network (id, sha256, name, inputs, created)"
        f" SELECT i + 1, {sql.hexadecimal('i', 64)}, 'network ' || i,"
        f" {sql.json(quoted('{}'))}, {_WHEN} FROM {jobs}",
        "INSERT INTO workload (id, hash, engine, ir, flop, name)"
        f" SELECT i + 1, {hashed}, '{ENGINE}', {_blob(sql)}, 1e6 * (1 + i % 977),"
        f" 'fused_conv2d_add_relu[' || i || ']' FROM {tasks}",
        f"INSERT INTO task (id, workload_id, target_id) SELECT i + 1, i + 1, 1 FROM {tasks}",
        "INSERT INTO network_task (network_id, task_id, weight, position)"
        f" SELECT i / {per_job} + 1, i + 1, 1 + i % 4, i % {per_job} FROM {tasks}",
        "INSERT INTO extraction (network_id, target_id, notes, n_kernel_calls, extra)"
        f" SELECT i + 1, 1, {sql.json(quoted('[]'))}, {per_job * 2}, {sql.json(quoted('{}'))}"
        f" FROM {jobs}",
    )


def _jobs(filling: Filling, sql: _Sql) -> tuple[str, ...]:
    trials = filling.n_records // filling.n_jobs
    jobs = sql.series(0, filling.n_jobs)
    return (
        "INSERT INTO job (id, network_id, target_id, name, request, submission, objective, seed,"
        " budget_trials, spent_secs, priority, state, settings, created, updated)"
        f" SELECT i + 1, i + 1, 1, 'job ' || i, NULL, '', 'f1', 0, {trials * 2}, 3600.0, 0,"
        f" 'running', {sql.json(quoted('{}'))}, {_WHEN}, {_WHEN} FROM {jobs}",
        "INSERT INTO job_status (job_id, phase, task_id, gains, spent_trials, outlook, updated)"
        f" SELECT i + 1, 'choosing', NULL, {sql.json(quoted(_GAINS))}, {trials}, NULL, {_WHEN}"
        f" FROM {jobs}",
    )


def _picks(filling: Filling, sql: _Sql) -> str:
    n, per_job = filling.n_tasks, filling.tasks_per_job
    sequence = f"(i / {n}) * {per_job} + i % {per_job} + 1"
    return (
        "INSERT INTO pick (id, job_id, sequence, task_id, n_trials, terms, done, secs, total_secs,"
        " job_trials, created)"
        f" SELECT i + 1, (i % {n}) / {per_job} + 1, {sequence}, i % {n} + 1, {TRIALS_PER_PICK},"
        f" {sql.json(quoted(_TERMS))}, TRUE, 12.5, 0.02 + 0.1 / (1 + i * 0.001),"
        f" ({sequence}) * {TRIALS_PER_PICK}, {_WHEN} FROM {sql.series(0, filling.n_picks)}"
    )


def _records(filling: Filling, sql: _Sql, first: int, end: int) -> str:
    """Insert records; Knuth's multiplicative hash of the number supplies all randomness."""
    share = "(i * 2654435761 % 4294967296) / 4294967296.0"
    task = f"(i / {TRIALS_PER_PICK}) % {filling.n_tasks}"
    hashed = sql.hexadecimal("i * 2654435761 % 4294967296", 32)
    latency = "base_secs * (1 + share)"
    failed = "share > 0.9"
    samples = sql.json(f"'[' || {latency} || ', ' || {latency} || ', ' || {latency} || ']'")
    return (
        "INSERT INTO measure_record (id, task_id, pick_id, trace, trace_hash, module_hash,"
        " run_secs, latency, error_kind, error_text, verified, max_error, worker, created)"
        f" SELECT i + 1, task + 1, i / {TRIALS_PER_PICK} + 1,"
        f" {sql.padded('hashed', filling.trace_bytes)}, hashed, substr(hashed, 17),"
        f" CASE WHEN {failed} THEN NULL ELSE {samples} END,"
        f" CASE WHEN {failed} THEN NULL ELSE {latency} END,"
        f" CASE WHEN {failed} THEN 'run_error' END,"
        f" CASE WHEN {failed} THEN 'Segmentation fault' END,"
        f" NOT ({failed}), 1e-6, 'local', {_WHEN}"
        f" FROM (SELECT i, {task} AS task, {hashed} AS hashed, {share} AS share,"
        f" 1e-5 * (1 + {task} % 97) AS base_secs FROM {sql.series(first, end)}) AS drawn"
    )


def _bests(sql: _Sql) -> tuple[str, ...]:
    return (
        "INSERT INTO best_record (task_id, record_id, latency, confirmed)"
        " SELECT task_id, id, latency, FALSE FROM measure_record WHERE id IN ("
        "  SELECT (SELECT id FROM measure_record AS mine WHERE mine.task_id = task.id"
        "          AND latency IS NOT NULL ORDER BY latency LIMIT 1) FROM task)",
        f"UPDATE measure_record SET trace = {sql.padded('trace_hash', _BEST_TRACE_BYTES)}"
        " WHERE id IN (SELECT record_id FROM best_record)",
    )


def _sums(filling: Filling, sql: _Sql) -> tuple[str, ...]:
    statements: tuple[str, ...] = (
        """
        UPDATE pick SET n_measured = sums.n_measured, n_failed = sums.n_failed,
            best_secs = sums.best_secs, run_secs = sums.run_secs
        FROM (SELECT pick_id, COUNT(*) AS n_measured, COUNT(error_kind) AS n_failed,
                     MIN(latency) AS best_secs, COALESCE(SUM(latency), 0) AS run_secs
              FROM measure_record GROUP BY pick_id) AS sums
        WHERE sums.pick_id = pick.id
        """,
        """
        INSERT INTO job_failure (job_id, error_kind, n_trials, record_id)
        SELECT job_id, 'run_error', SUM(n_failed),
            (SELECT MIN(id) FROM measure_record WHERE error_kind IS NOT NULL)
        FROM pick GROUP BY job_id
        """,
    )
    return statements + (_events(filling, sql) if filling.events else ())


def _events(filling: Filling, sql: _Sql) -> tuple[str, ...]:
    """Insert events of one job's records; several jobs would need separate numbers."""
    data = (
        """'{"pick": ' || pick_id || ', "task_id": ' || task_id || ', "record": ' || id ||"""
        """ ', "latency_secs": 0.001, "error_kind": null, "best": false}'"""
    )
    return (
        "INSERT INTO event (job_id, sequence, kind, data, created)"
        f" SELECT 1, id, 'trial', {sql.json(data)}, created FROM measure_record",
        f"UPDATE job SET n_events = {filling.n_records} WHERE id = 1",
    )


def _blob(sql: _Sql) -> str:
    """Return IR of three thousand bytes, the size of a convolution's."""
    if isinstance(sql, _Sqlite):
        return "zeroblob(3000)"
    return "decode(repeat('00', 3000), 'hex')"


def quoted(text: str) -> str:
    """Return an SQL literal of a text."""
    return "'" + text.replace("'", "''") + "'"
