"""Checks of cores and memory, within the limits of a container."""

import os
from collections.abc import Mapping
from pathlib import Path

from tuner.cli.doctor.check import GIB, Check
from tuner.library import processors
from tuner.settings import Settings
from tuner.workers.confinement.memory import (
    MIN_BUILDER_BYTES,
    builder_count,
    kills_together,
    memory_limits,
)

_MIN_FREE_BYTES = 2 * GIB
# Lowest level of the x86-64 psABI on which schedules by rule were measured.
_MEASURED_LEVEL = "x86-64-v3"
_CGROUP = Path("/sys/fs/cgroup")


def check_cores(cgroup: Path = _CGROUP) -> Check:
    """Count the usable cores, and look for a CPU quota, which would disturb timing."""
    n_usable, n_all = len(os.sched_getaffinity(0)), os.cpu_count()
    details = {"usable": n_usable, "all": n_all}
    result = f"{n_usable} usable of {n_all}"
    quota, _, period = _text(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(quota) < int(period) * n_usable:
        result += f", with a CPU quota of {int(quota) / int(period):g} cores"
        fix = "assign whole cores, as with docker run --cpuset-cpus=0-3: a quota pauses runs"
        return Check("cores", "warning", result, fix, essential=False, details=details)
    return Check("cores", "ok", result, essential=False, details=details)


def check_instructions(machine: str, fields: Mapping[str, str]) -> Check:
    """Report the level of instruction sets, on which the speed of kernels depends.

    Args:
        machine: Machine of the CPU.
        fields: Its fields in /proc/cpuinfo.
    """
    reported = processors.reported_features(machine, fields)
    if machine != "x86_64" or reported is None:
        return Check("instruction sets", "ok", machine, essential=False)
    level = processors.level_of(reported)
    details = {"level": level, "features": sorted(reported)}
    if level < _MEASURED_LEVEL:
        result = f"{level}: kernels are right, but schedules by rule are measured from AVX2 on"
        fix = f"use a CPU of {_MEASURED_LEVEL} (AVX2, FMA) or later for speed, and for make test"
        return Check("instruction sets", "warning", result, fix, essential=False, details=details)
    products = "VNNI" if {"avx512vnni", "avxvnni"} & reported else "pairs of 16-bit integers"
    result = f"{level}; products of bytes by {products}"
    return Check("instruction sets", "ok", result, essential=False, details=details)


def check_memory(cgroup: Path = _CGROUP) -> Check:
    """Report the free memory of the machine or of the container, whichever is less."""
    import psutil

    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    limit, used = _text(cgroup / "memory.max"), _text(cgroup / "memory.current")
    if limit.isdigit() and used.isdigit() and int(limit) < total:
        total, free = int(limit), min(free, int(limit) - int(used))
    result = f"{free / GIB:.1f} GiB free of {total / GIB:.1f}"
    details = {"total_bytes": total, "free_bytes": free}
    if free < _MIN_FREE_BYTES:
        fix = "end other programs, or set TUNER_N_BUILDERS=1"
        return Check("memory", "warning", result, fix, essential=False, details=details)
    return Check("memory", "ok", result, essential=False, details=details)


def check_kills(settings: Settings) -> Check:
    """Look whether the kernel kills a worker's coordinator with its processes."""
    limits = memory_limits(settings)
    result = "one process at a time when it runs out"
    if not kills_together():
        return Check("memory kills", "ok", result, essential=False)
    result = "all processes at once when it runs out (memory.oom.group), so that they share it"
    details = {"builder_bytes": limits.builder, "n_builders": builder_count(settings)}
    if limits.builder < MIN_BUILDER_BYTES:
        fix = (
            "lower TUNER_N_BUILDERS, or raise the limit of the memory: a builder has "
            f"{limits.builder / GIB:.1f} GiB"
        )
        return Check("memory kills", "warning", result, fix, essential=False, details=details)
    return Check("memory kills", "ok", result, essential=False, details=details)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
