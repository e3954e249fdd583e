"""Tests of cached target descriptions: reused until anything that determines them changes."""

from pathlib import Path

import pytest

from tuner.build_cache.cache import Cache
from tuner.devices import target_cache
from tuner.engines.base import TargetInfo
from tuner.engines.environments import Interpreter
from tuner.engines.runtime import onednn

ENGINE = "tests.engines.toy"


class CountingWorker:
    """Description of a kind of target by a worker, with a counter of calls."""

    def __init__(self, kind: str = "llvm") -> None:
        self.n_calls = 0
        self.info = TargetInfo(
            spec=f'{{"kind":"{kind}"}}',
            kind=kind,
            device={"name": "a device", "n_cores": 2},
            pipeline="toy",
            problem="",
            compiler={"objects": 1},
        )

    def __call__(self) -> TargetInfo:
        """Describe the target."""
        self.n_calls += 1
        return self.info


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return an empty cache."""
    return Cache(tmp_path / "cache")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a package with a shared library that descriptions depend on."""
    folder = tmp_path / "described_package"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "lib" / "liball.so").write_bytes(b"first")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(target_cache, "_MODULES", (folder.name,))
    return folder


def test_an_installed_library_changes_a_description(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that was missing for one command is there for the next, once installed."""
    worker = CountingWorker()
    monkeypatch.setattr(onednn, "file_facts", lambda: None)
    target_cache.describe(cache, ENGINE, "llvm+onednn", worker)
    monkeypatch.setattr(onednn, "file_facts", lambda: ["libdnnl.so.3", 1, 2])

    target_cache.describe(cache, ENGINE, "llvm+onednn", worker)

    assert worker.n_calls == 2


def test_worker_is_called_once(cache: Cache) -> None:
    """A cached description is returned unchanged; spaces around a target are ignored."""
    worker = CountingWorker()

    infos = [target_cache.describe(cache, ENGINE, spec, worker) for spec in ("llvm", " llvm ")]

    assert infos == [worker.info, worker.info]
    assert worker.n_calls == 1


def test_gpu_is_described_every_time(cache: Cache) -> None:
    """A GPU may be replaced, so its descriptions are not cached."""
    worker = CountingWorker("cuda")

    for _ in range(2):
        target_cache.describe(cache, ENGINE, "cuda", worker)

    assert worker.n_calls == 2


def test_worker_is_called_again_after_a_library_was_rebuilt(cache: Cache, package: Path) -> None:
    """A library of the same version may contain another compiler."""
    worker = CountingWorker()

    for content in (b"first", b"other LLVM", b"other LLVM"):
        library = package / "lib" / "liball.so"
        if library.read_bytes() != content:
            library.write_bytes(content)
        target_cache.describe(cache, ENGINE, "llvm", worker)

    assert worker.n_calls == 2


def test_worker_is_called_again_for_an_environment_with_other_packages(
    cache: Cache, tmp_path: Path
) -> None:
    """Packages count in the environment of the engine, which can be another than this one."""
    worker = CountingWorker()
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    interpreter = Interpreter(str(tmp_path / "bin" / "python"), {})

    for version in ("0.19", "0.19", "0.20"):
        (packages / f"tvm-{version}.dist-info").mkdir(parents=True, exist_ok=True)
        target_cache.describe(cache, ENGINE, "llvm", worker, interpreter)

    assert worker.n_calls == 2
