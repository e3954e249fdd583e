"""The soak test finds the processes that it kills and watches."""

import os
import shutil
from pathlib import Path

import pytest

from benchmarks.soaking.faults import by_role
from benchmarks.soaking.samples import sizes
from tuner.workers.pool import Pool, WorkerSettings


def test_workers_are_found(tmp_path: Path) -> None:
    """The processes of a pool are those that are killed as children."""
    others = {worker.pid for worker in by_role(os.getpid()).get("child", [])}
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as pool:
        process_id = pool.call("os", "getpid")

        children = {worker.pid for worker in by_role(os.getpid()).get("child", [])}
    assert children - others == {process_id}


def test_folders_may_go_while_their_sizes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the folder that is left counts."""
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"1" * 5000)
    relative_to = Path.relative_to

    def remove_others(path: Path, *others: Path) -> Path:
        for folder in set(tmp_path.iterdir()) - {path.parent}:
            shutil.rmtree(folder)
        return relative_to(path, *others)

    monkeypatch.setattr(Path, "relative_to", remove_others)

    (n_bytes,) = sizes(tmp_path).values()
    assert n_bytes >= 5000
