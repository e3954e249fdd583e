"""What the tuner needs of a machine: one check a thing, each with how to mend it.

A check never raises: what goes wrong in one is its answer, and the others still run.
No check imports TVM here; the target is described in a worker.
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from tuner.errors import last_line, summary
from tuner.settings import Settings

State = Literal["ok", "warning", "missing"]

_GIB = 2**30
_LOW_BYTES = 2 * _GIB
_TARGET_TIMEOUT_SECS = 120.0
_TOOL_TIMEOUT_SECS = 20.0
# The first that knows CUDA 13.
_OLDEST_DRIVER = (580,)
_FFI_HAZARD = "0.1.15 crashes in tvm.ir.save_json and 0.1.13 does not import"


@dataclass(frozen=True)
class Check:
    """The answer of one check.

    Attributes:
        name: What was looked at.
        state: ``warning`` works, but not well; ``missing`` does not work.
        found: What is there, or what is wrong, in one line.
        mend: What to do about it; empty if nothing is wrong.
        essential: Whether tuning fails without it.
        details: The same for programs.
    """

    name: str
    state: State
    found: str
    mend: str = ""
    essential: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fatal(self) -> bool:
        """Whether tuning cannot work like this."""
        return self.essential and self.state == "missing"


@dataclass(frozen=True)
class Package:
    """A Python package; ``wanted`` as in pyproject.toml, ``extra`` if it is optional."""

    name: str
    wanted: str
    extra: str = ""
    purpose: str = ""
    also: str = ""


PACKAGES = (
    Package("apache-tvm", "==0.27.0.post1"),
    Package("apache-tvm-ffi", "==0.1.14.post1"),
    Package("xgboost-cpu", ">=3.2,<4", also="xgboost"),
    Package("numpy", ">=2.0"),
    Package("scipy", ">=1.13"),
    Package("onnx", ">=1.18"),
    Package("onnxslim", ">=0.1.98"),
    Package("onnxruntime", ">=1.23", "onnxruntime", "compares in tuner bench"),
    Package("torch", ">=2.8", "torch", "reads .pt2 models"),
    Package("psycopg", ">=3.2", "postgresql", "speaks to PostgreSQL"),
    Package("cuda-bindings", ">=13.0,<14", "cuda", "compiles for NVIDIA GPUs"),
    Package("nvidia-ml-py", ">=13", "cuda", "finds NVIDIA GPUs and reads their clocks"),
    Package("ray", "==2.60.*", "ray", "builds and measures on a Ray cluster"),
    Package("tornado", ">=6.4", "rpc", "runs TVM's RPC tracker and servers here"),
)


def run_checks(settings: Settings) -> Iterator[Check]:
    """Run every check, one after the other."""
    yield check_tuner()
    yield check_python()
    for package in PACKAGES:
        yield check_package(package)
    yield _guarded("C compiler", check_compiler)
    yield _guarded("linker", check_linker)
    yield _guarded("target", lambda: check_target(settings))
    yield _guarded("CUDA", check_cuda, essential=False)
    yield _guarded("database", lambda: check_database(settings.database))
    yield _guarded("data directory", lambda: check_data_dir(settings.data_dir))
    yield _guarded("cores", check_cores, essential=False)
    yield _guarded("memory", check_memory, essential=False)


def check_tuner() -> Check:
    """Say which tuner this is."""
    version = _version("subgraph-tuner")
    if version is None:
        return Check("tuner", "ok", f"not installed, runs from {Path(__file__).parent.parent}")
    return Check("tuner", "ok", version)


def check_python() -> Check:
    """Say which Python this is; nothing older than 3.11 gets this far."""
    return Check("python", "ok", platform.python_version())


def check_package(package: Package) -> Check:
    """Compare the installed version of a package with the one that is wanted."""
    version = _version(package.name) or (_version(package.also) if package.also else None)
    essential = not package.extra
    mend = f"pip install '{package.name}{package.wanted}'"
    if version is None:
        found = "not installed" + (f"; optional, {package.purpose}" if package.extra else "")
        if package.extra:
            mend = f"pip install 'subgraph-tuner[{package.extra}]'"
        return Check(package.name, "missing", found, mend, essential)
    if satisfies(version, package.wanted):
        return Check(package.name, "ok", version, essential=essential)
    hazard = f"; {_FFI_HAZARD}" if package.name == "apache-tvm-ffi" else ""
    return Check(
        package.name, "warning", f"{version}, not {package.wanted}{hazard}", mend, essential
    )


def satisfies(version: str, wanted: str) -> bool:
    """Return whether a version meets every ``==``, ``>=`` and ``<`` of a requirement.

    Only ``==`` knows ``.*``.
    """
    for clause in wanted.split(","):
        operator, limit = re.fullmatch(r"(==|>=|<)(.+)", clause.strip()).groups()  # type: ignore[union-attr]
        if operator == "==" and not fnmatchcase(version, limit):
            return False
        if operator == ">=" and _numbers(version) < _numbers(limit):
            return False
        if operator == "<" and _numbers(version) >= _numbers(limit):
            return False
    return True


def check_compiler() -> Check:
    """Look for the compiler driver that links libraries."""
    return _check_tool(
        "C compiler", ("cc", "gcc", "clang"), "install one, for example: apt install gcc"
    )


def check_linker() -> Check:
    """Look for the linker that links candidates."""
    return _check_tool("linker", ("ld",), "install binutils, for example: apt install binutils")


def check_target(settings: Settings) -> Check:
    """Describe this CPU in a worker, with a log of its own: the data directory may be broken."""
    from tuner.workers.pools import fresh_worker

    mend = "reinstall apache-tvm and apache-tvm-ffi in the versions above"
    with tempfile.TemporaryDirectory(prefix="tuner-doctor-") as folder:
        try:
            with fresh_worker(replace(settings, data_dir=Path(folder)), "doctor") as worker:
                target = worker.call(
                    settings.engine, "describe_target", "llvm", timeout_secs=_TARGET_TIMEOUT_SECS
                )
        except Exception as error:  # an engine may fail in any way, and that is the answer
            said = last_line(_text(Path(folder) / "logs" / "doctor.log"))
            reason = f"{summary(error)}; it said: {said}" if said else summary(error)
            return Check("target", "missing", f"{settings.engine} fails: {reason}", mend)
    device = dict(target.device)
    details = {"spec": target.spec, "device": device}
    if target.problem:
        return Check("target", "missing", target.problem, mend, details=details)
    cpu = json.loads(target.spec).get("mcpu", "generic")
    described = ", ".join(f"{name} {value}" for name, value in device.items())
    return Check("target", "ok", f"llvm -mcpu={cpu}: {described}", details=details)


def check_cuda() -> Check:
    """Look for an NVIDIA driver: the library that programs load, and the tool that asks it."""
    library, smi = find_library("cuda"), shutil.which("nvidia-smi")
    if library is None:
        toolkit = shutil.which("nvcc") or find_library("cudart")
        there = "nvidia-smi is there, " if smi else "a CUDA toolkit is there, " if toolkit else ""
        return Check(
            "CUDA",
            "missing",
            f"{there}libcuda.so.1, the NVIDIA driver's library, is not; optional",
            "install the NVIDIA driver; in a container, start it with --gpus all",
            essential=False,
        )
    if smi is None:
        return Check(
            "CUDA", "warning", f"{library} is there, nvidia-smi is not: no GPU was asked",
            "install the driver's tools, for example: apt install nvidia-utils-<version>",
            essential=False,
        )  # fmt: skip
    query = "--query-gpu=name,compute_cap,driver_version"
    failure, text = _run([smi, query, "--format=csv,noheader"])
    gpus = [line.strip() for line in text.splitlines() if line.strip()]
    if failure or not gpus:
        return Check(
            "CUDA", "warning", f"{library} is there, {failure or 'nvidia-smi names no GPU'}",
            "load the driver (nvidia-smi must work); in a container, start it with --gpus all",
            essential=False,
        )  # fmt: skip
    found, details = "; ".join(gpus), {"gpus": gpus}
    if _numbers(gpus[0].rpartition(",")[2].strip()) < _OLDEST_DRIVER:
        mend = "upgrade the NVIDIA driver to 580 or later: kernels are compiled for CUDA 13"
        return Check("CUDA", "warning", found, mend, essential=False, details=details)
    return Check("CUDA", "ok", found, essential=False, details=details)


def check_database(url: str) -> Check:
    """Open the database and count what it holds; one that is not there yet is not created."""
    from sqlalchemy import func, select, text

    from records import database
    from records.errors import SchemaTooNew
    from records.models import Job, MeasureRecord, Task

    shown = database.redact(url)
    unborn = _unborn_file(url)
    if unborn is not None:
        problem = _unwritable(unborn.parent)
        if problem:
            return Check("database", "missing", f"{shown}: {problem}", _DATABASE_MEND)
        return Check("database", "ok", f"{shown}: not there yet, the first command creates it")
    try:
        engine = database.open_database(url)
    except SchemaTooNew as error:
        return Check("database", "missing", str(error), "upgrade subgraph-tuner")
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
    held = ", ".join(f"{count} {name}" for name, count in counts.items())
    details = {"url": shown, "schema": schema, **counts}
    return Check("database", "ok", f"{shown}: schema {schema}, {held}", details=details)


_DATABASE_MEND = "name one that can be used with --database or TUNER_DATABASE"


def check_data_dir(path: Path) -> Check:
    """Look whether the data directory can be written, and how much room it has."""
    problem = _unwritable(path)
    if problem:
        mend = "name one that can be written with --data-dir or TUNER_DATA_DIR"
        return Check("data directory", "missing", f"{path}: {problem}", mend)
    free = shutil.disk_usage(_existing(path)).free
    found = f"{path}: {free / _GIB:.1f} GiB free" + ("" if path.exists() else ", not there yet")
    details = {"path": str(path), "free_bytes": free}
    if free < _LOW_BYTES:
        mend = "free some space, or name another with --data-dir or TUNER_DATA_DIR"
        return Check("data directory", "warning", found, mend, details=details)
    return Check("data directory", "ok", found, details=details)


def check_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> Check:
    """Count the cores we may use, and look for a quota that would disturb what is timed."""
    n_usable, n_all = len(os.sched_getaffinity(0)), os.cpu_count()
    details = {"usable": n_usable, "all": n_all}
    found = f"{n_usable} usable of {n_all}"
    limit, _, period = _text(cgroup / "cpu.max").partition(" ")
    if limit.isdigit() and period.isdigit() and int(limit) < int(period) * n_usable:
        found += f", but a quota stops them after {int(limit) / int(period):g} cores' worth"
        mend = "give whole cores instead, such as docker run --cpuset-cpus=0-3: a quota halts runs"
        return Check("cores", "warning", found, mend, essential=False, details=details)
    return Check("cores", "ok", found, essential=False, details=details)


def check_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> Check:
    """Look how much memory is left, for us and within the limit of our container."""
    import psutil

    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    limit, used = _text(cgroup / "memory.max"), _text(cgroup / "memory.current")
    if limit.isdigit() and used.isdigit() and int(limit) < total:
        total, free = int(limit), min(free, int(limit) - int(used))
    found = f"{free / _GIB:.1f} GiB free of {total / _GIB:.1f}"
    details = {"total_bytes": total, "free_bytes": free}
    if free < _LOW_BYTES:
        mend = "end other programs, or set TUNER_N_BUILDERS=1"
        return Check("memory", "warning", found, mend, essential=False, details=details)
    return Check("memory", "ok", found, essential=False, details=details)


def _guarded(name: str, check: Callable[[], Check], *, essential: bool = True) -> Check:
    try:
        return check()
    except Exception as error:  # one broken thing must not hide the others
        mend = _DATABASE_MEND if name == "database" else ""
        return Check(name, "missing", summary(error), mend, essential)


def _check_tool(name: str, programs: Sequence[str], mend: str) -> Check:
    found = next((path for path in map(shutil.which, programs) if path), None)
    if found is None:
        return Check(name, "missing", f"no {' or '.join(programs)} on PATH", mend)
    failure, text = _run([found, "--version"])
    if failure:
        return Check(name, "missing", failure, mend)
    return Check(name, "ok", f"{found}: {(text.splitlines() or ['no version'])[0]}")


def _run(command: Sequence[str]) -> tuple[str, str]:
    """Run a program; return why it failed, if it did, and what it printed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TOOL_TIMEOUT_SECS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]} does not run: {summary(error)}", ""
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "silently").splitlines()[0]
        return f"{command[0]} fails: {said}", done.stdout
    return "", done.stdout


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name) or None
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release.group().split(".")) if release else ()


def _unborn_file(url: str) -> Path | None:
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


def _existing(path: Path) -> Path:
    """Return the nearest folder or file above, or the path itself, that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def _unwritable(path: Path) -> str:
    """Say why a folder cannot be written or created; empty if it can."""
    nearest = _existing(path)
    if not nearest.is_dir():
        return f"{nearest} is not a directory"
    if nearest != path:
        return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} is not writable"
    try:
        with tempfile.TemporaryFile(dir=path):
            return ""
    except OSError as error:
        return f"cannot be written: {error.strerror}"


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
