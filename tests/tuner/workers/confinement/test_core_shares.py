"""Shares of the cores of a process."""

from pathlib import Path

import pytest

from tuner.workers.confinement.core_shares import cores_of


def machine(cpus: Path, siblings: list[str]) -> Path:
    """Write the topology of a machine: the threads that share the core of each thread."""
    for thread, text in enumerate(siblings):
        folder = cpus / f"cpu{thread}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n")
    return cpus


@pytest.mark.parametrize(
    ("share", "cores"),
    [(0.5, {2, 3, 6, 7}), (0.25, {3, 7}), (0.4, {3, 7}), (0.01, {3, 7}), (0.9, {1, 2, 3, 5, 6, 7})],
)
def test_a_share_is_whole_cores(tmp_path: Path, share: float, cores: set[int]) -> None:
    """On x86 the second threads of all cores usually come after the first ones."""
    cpus = machine(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2)

    assert cores_of(share, range(8), cpus) == cores


def test_threads_of_a_core_may_have_neighbouring_numbers(tmp_path: Path) -> None:
    """Threads that the process may not use are not part of a share."""
    cpus = machine(tmp_path, ["0-1", "0-1", "2-3", "2-3", "4-5", "4-5"])

    assert cores_of(0.4, range(6), cpus) == {4, 5}
    assert cores_of(0.4, [0, 1, 2, 3, 4], cpus) == {4}


def test_without_a_topology_every_thread_is_a_core(tmp_path: Path) -> None:
    """The last ones are taken, at least one."""
    assert cores_of(0.5, range(4), tmp_path) == {2, 3}
    assert cores_of(0.1, range(4), tmp_path) == {3}


def test_a_share_of_everything_is_not_limited(tmp_path: Path) -> None:
    """So is that of a machine with one core."""
    assert cores_of(1.0, range(4), tmp_path) == frozenset()
    assert cores_of(0.5, range(2), machine(tmp_path, ["0-1", "0-1"])) == frozenset()
