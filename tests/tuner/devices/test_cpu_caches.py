"""Cache sizes come from Linux; where it reports none, from a default."""

import os
from pathlib import Path

import pytest

from tuner.devices import cpu_caches

KIB = 1024


def describe_core(cpus: Path, core: int, l3: tuple[str, str] | None = None) -> None:
    """Write the caches of a core: its L1 and L2, and an L3 with its size and its cores."""
    caches = [("1", "Data", "48K", str(core)), ("1", "Instruction", "32K", str(core))]
    caches += [("2", "Unified", "4096K", str(core))]
    caches += [("3", "Unified", *l3)] if l3 else []
    for number, values in enumerate(caches):
        folder = cpus / f"cpu{core}" / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            (folder / name).write_text(f"{value}\n")


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may use the cores 0 to 3."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    cpu_caches.private_bytes.cache_clear()
    cpu_caches.shared_bytes.cache_clear()


def test_last_level_caches_of_two_dies_add_up(tmp_path: Path) -> None:
    """Cores 0 and 1 share one, cores 2 and 3 another."""
    for core in range(4):
        describe_core(tmp_path, core, ("16M", "0-1" if core < 2 else "2-3"))

    assert cpu_caches.shared_bytes(tmp_path) == 32 * KIB**2
    assert cpu_caches.private_bytes(tmp_path) == 4 * KIB**2


def test_without_a_third_level_the_second_is_the_last(tmp_path: Path) -> None:
    """Every core of such a machine has its own."""
    for core in range(4):
        describe_core(tmp_path, core)

    assert cpu_caches.shared_bytes(tmp_path) == 16 * KIB**2


def test_sizes_that_are_not_reported_have_defaults(tmp_path: Path) -> None:
    """Virtual machines often report no caches."""
    assert cpu_caches.shared_bytes(tmp_path) == 32 * KIB**2
    assert cpu_caches.private_bytes(tmp_path) == 2 * KIB**2


def test_sizes_by_level_are_those_of_data_caches(tmp_path: Path) -> None:
    """Caches of instructions do not count; typical sizes stand in where none is reported."""
    assert cpu_caches.sizes_by_level(tmp_path) == {2: 2 * KIB**2, 3: 32 * KIB**2}

    describe_core(tmp_path, 0, ("16M", "0-3"))

    assert cpu_caches.sizes_by_level(tmp_path) == {1: 48 * KIB, 2: 4 * KIB**2, 3: 16 * KIB**2}
