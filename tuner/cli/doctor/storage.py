"""Checks of the database and of the data directory."""

import os
import shutil
import tempfile
from pathlib import Path

from tuner.cli.doctor.check import GIB, Check
from tuner.formatting import counted
from tuner.settings import Settings
from tuner.workers.confinement import landlock, sandbox

_NAME = "sandbox"


DATABASE_FIX = "name a usable one with --database or TUNER_DATABASE"
_MIN_FREE_BYTES = 2 * GIB


def check_database(url: str) -> Check:
    """Open the database and count its rows; a missing one is not created."""
    from sqlalchemy import func, select, text

    from records import database
    from records.errors import SchemaTooNew, SchemaTooOld
    from records.models import Job, MeasureRecord, Task

    shown = database.redact(url)
    missing_file = _missing_file(url)
    if missing_file is not None:
        problem = _write_problem(missing_file.parent)
        if problem:
            return Check("database", "missing", f"{shown}: {problem}", DATABASE_FIX)
        return Check("database", "ok", f"{shown}: will be created by the first command")
    try:
        engine = database.open_database(url)
    except SchemaTooNew as error:
        return Check("database", "missing", str(error), f"upgrade it, or {DATABASE_FIX}")
    except SchemaTooOld as error:
        return Check("database", "missing", str(error), "run `tuner db upgrade`")
    try:
        with database.sessions(engine, read_only=True)() as session:
            tables = {"records": MeasureRecord, "tasks": Task, "jobs": Job}
            counts = {
                name: session.scalar(select(func.count()).select_from(table)) or 0
                for name, table in tables.items()
            }
            schema = session.scalar(text("SELECT version_num FROM alembic_version"))
    finally:
        engine.dispose()
    contents = ", ".join(counted(count, name[:-1]) for name, count in counts.items())
    details = {"url": shown, "schema": schema, **counts}
    return Check("database", "ok", f"{shown}: schema {schema}, {contents}", details=details)


def check_data_dir(path: Path) -> Check:
    """Check that the data directory can be written and has free space."""
    problem = _write_problem(path)
    if problem:
        fix = "name a writable one with --data-dir or TUNER_DATA_DIR"
        return Check("data directory", "missing", f"{path}: {problem}", fix)
    free = shutil.disk_usage(_nearest_existing(path)).free
    suffix = "" if path.exists() else ", will be created by the first command"
    result = f"{path}: {free / GIB:.1f} GiB free{suffix}"
    details = {"path": str(path), "free_bytes": free}
    if free < _MIN_FREE_BYTES:
        fix = "free some space, or name another directory with --data-dir or TUNER_DATA_DIR"
        return Check("data directory", "warning", result, fix, details=details)
    return Check("data directory", "ok", result, details=details)


def _missing_file(url: str) -> Path | None:
    """Return the file of an SQLite URL if it does not exist yet."""
    from sqlalchemy import exc, make_url

    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        return None
    name = parsed.database
    if parsed.get_backend_name() != "sqlite" or not name or name.startswith((":", "file:")):
        return None
    path = Path(name).absolute()
    return None if path.exists() else path


def _nearest_existing(path: Path) -> Path:
    """Return the path, or the nearest of its parents, that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _write_problem(path: Path) -> str:
    """Return why a directory cannot be written or created; empty if it can."""
    nearest = _nearest_existing(path)
    if not nearest.is_dir():
        return f"{nearest} is not a directory"
    if nearest != path:
        return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} is not writable"
    try:
        with tempfile.TemporaryFile(dir=path):
            return ""
    except OSError as error:
        return f"cannot be written: {error.strerror}"


def check_sandbox(settings: Settings) -> Check:
    """Report what the kernel can keep workers from, and the setting."""
    mode, problem = settings.worker_sandbox, sandbox.shortcoming()
    version = landlock.abi_version()
    details = {"mode": mode, "landlock": version}
    if mode == "off":
        fix = "unset worker_sandbox, unless you debug workers"
        text = "off: workers reach the files and the network of their user"
        return Check(_NAME, "warning", text, fix, essential=False, details=details)
    if problem:
        fix = "run a kernel of version 6.2 or later with Landlock and seccomp"
        if mode == "auto":
            problem = f"a service does not start here: {problem}"
            fix += ", or set worker_sandbox to partial"
        if mode == "required":
            return Check(_NAME, "missing", problem, fix, details=details)
        return Check(_NAME, "warning", problem, fix, essential=False, details=details)
    text = f"{mode}: Landlock {version} and seccomp confine workers"
    return Check(_NAME, "ok", text, essential=False, details=details)
