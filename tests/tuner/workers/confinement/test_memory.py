"""Limits on the memory of worker processes."""

from dataclasses import replace
from pathlib import Path

import pytest

from tuner.settings import Settings
from tuner.workers.confinement.memory import (
    MIN_BUILDER_BYTES,
    builder_count,
    kills_together,
    memory_limits,
    usable_bytes,
)

MACHINE = usable_bytes(Path("/nowhere"))
GIB = 2**30


def process(tmp_path: Path, cgroup: str, mountinfo: str) -> Path:
    """Write the files of a process; ``{}`` in the mounts stands for the folder of the cgroups."""
    (tmp_path / "cgroup").write_text(cgroup)
    (tmp_path / "mountinfo").write_text(mountinfo.format(tmp_path / "fs"))
    return tmp_path


def limit(tmp_path: Path, path: str, text: str) -> None:
    """Write the limit of a cgroup."""
    file = tmp_path / "fs" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


V2_MOUNT = "29 23 0:26 / {} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_without_a_cgroup_the_machine_counts(tmp_path: Path) -> None:
    """A process without limits may use all memory."""
    assert usable_bytes(tmp_path) == MACHINE
    proc = process(tmp_path, "0::/a\n", V2_MOUNT)
    limit(tmp_path, "a/memory.max", "max")
    assert usable_bytes(proc) == MACHINE


@pytest.mark.parametrize("limited", ["memory.max", "a/memory.max", "a/b/memory.max"])
def test_the_smallest_limit_of_version_2_counts(tmp_path: Path, limited: str) -> None:
    """Cgroups around that of the process limit it, too."""
    proc = process(tmp_path, "0::/a/b\n", V2_MOUNT)
    limit(tmp_path, "a/b/memory.max", "max")
    limit(tmp_path, limited, str(GIB // 2))
    limit(tmp_path, "a/other/memory.max", "1")

    assert usable_bytes(proc) == GIB // 2


def test_a_container_of_version_1_sees_its_cgroup_as_the_root(tmp_path: Path) -> None:
    """The path in ``cgroup`` is that of the host; the mount shows a part of it."""
    mounts = (
        "34 31 0:31 /docker/f00 {0} ro - cgroup cgroup rw,cpu\n"
        "35 31 0:32 /docker/f00 {0} ro,relatime - cgroup cgroup rw,memory\n"
    )
    proc = process(tmp_path, "5:cpu:/docker/f00\n4:memory:/docker/f00\n", mounts)
    limit(tmp_path, "memory.limit_in_bytes", str(3 * GIB // 4))

    assert usable_bytes(proc) == 3 * GIB // 4


def test_an_unlimited_cgroup_of_version_1_counts_as_the_machine(tmp_path: Path) -> None:
    """Version 1 writes a huge number for no limit."""
    mount = "35 31 0:32 / {} rw,relatime - cgroup cgroup rw,memory\n"
    proc = process(tmp_path, "4:memory:/jobs/1\n0::/\n", mount)
    limit(tmp_path, "jobs/1/memory.limit_in_bytes", "9223372036854771712")

    assert usable_bytes(proc) == MACHINE


def test_builders_share_memory_and_have_enough_to_start() -> None:
    """Three quarters are shared; a small machine with many cores still gets working builders."""
    settings = Settings("", Path("/data"), "engine", 8)

    limits = memory_limits(settings, 64 * GIB)
    assert limits.builder == 6 * GIB
    assert (limits.load, limits.runner, limits.network) == (32 * GIB, 32 * GIB, 48 * GIB)
    assert memory_limits(settings, 4 * GIB).builder == GIB
    assert memory_limits(settings, GIB).builder == GIB // 2


def test_a_setting_replaces_all_limits() -> None:
    """It holds whatever the machine has."""
    settings = Settings("", Path("/data"), "engine", 8, worker_bytes=5 * GIB)

    limits = memory_limits(settings, GIB)

    assert {limits.builder, limits.load, limits.runner, limits.network} == {5 * GIB}


@pytest.mark.parametrize("group", ["a", "a/b", "."])
def test_a_cgroup_that_dies_as_a_whole_is_recognised(tmp_path: Path, group: str) -> None:
    """The kernel kills all processes of that group, or of one within it."""
    proc = process(tmp_path, "0::/a/b\n", V2_MOUNT)
    limit(tmp_path, "a/b/memory.oom.group", "0")
    assert not kills_together(proc)

    limit(tmp_path, f"{group}/memory.oom.group", "1")
    assert kills_together(proc)


@pytest.mark.parametrize(
    ("gibs", "count"), [(0.5, 1), (16, 9), (64, 16)], ids=["tiny", "small", "large"]
)
def test_builders_that_die_together_are_as_many_as_have_memory(gibs: float, count: int) -> None:
    """A GiB for each of 16 cores holds 9 builders of half a GiB; there is always one."""
    settings, total = Settings("", Path("/data"), "engine", 16), int(gibs * GIB)

    assert builder_count(settings, total, together=True) == count
    assert builder_count(settings, total, together=False) == 16
    builder = memory_limits(settings, total, together=True).builder
    assert builder >= min(MIN_BUILDER_BYTES, int(0.3 * total))


def test_a_number_of_builders_that_was_set_holds() -> None:
    """So does one whose memory was set."""
    settings = Settings("", Path("/data"), "engine", 16)

    for changed in (replace(settings, max_builders=16), replace(settings, worker_bytes=GIB)):
        assert builder_count(changed, 16 * GIB, together=True) == 16


@pytest.mark.parametrize("n_builders", [1, 4, 64])
def test_processes_that_die_together_do_not_overlap(n_builders: int) -> None:
    """Two loads, the runner and all builders leave memory to the coordinator; so does a command."""
    settings = Settings("", Path("/data"), "engine", n_builders)
    total = 16 * GIB
    limits = memory_limits(settings, total, together=True)

    shared = limits.runner + builder_count(settings, total, together=True) * limits.builder
    assert 2 * limits.load + shared < total
    assert limits.network + shared < total
    assert memory_limits(settings, total, together=False).runner == total // 2
