"""What a target means is asked once, and again when anything that answers it is another."""

from pathlib import Path

import pytest

from tuner.build_cache.cache import Cache
from tuner.devices import target_cache
from tuner.engines.base import TargetInfo
from tuner.engines.environments import Interpreter

ENGINE = "tests.engines.toy"


class Asked:
    """Answers for a kind of target, and counts."""

    def __init__(self, kind: str = "llvm") -> None:
        self.n_times = 0
        self.info = TargetInfo(
            spec=f'{{"kind":"{kind}"}}',
            kind=kind,
            device={"name": "a device", "n_cores": 2},
            pipeline="toy",
            problem="",
            compiler={"objects": 1},
        )

    def __call__(self) -> TargetInfo:
        """Answer."""
        self.n_times += 1
        return self.info


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache."""
    return Cache(tmp_path / "cache")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a shared library, of which the answers are said to depend."""
    folder = tmp_path / "answering_package"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "lib" / "liball.so").write_bytes(b"first")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(target_cache, "_MODULES", (folder.name,))
    return folder


def test_asks_once(cache: Cache) -> None:
    """What was answered comes back as it was; spaces around a target mean nothing."""
    asked = Asked()

    answers = [target_cache.describe(cache, ENGINE, spec, asked) for spec in ("llvm", " llvm ")]

    assert answers == [asked.info, asked.info]
    assert asked.n_times == 1


def test_graphics_card_is_asked_for_every_time(cache: Cache) -> None:
    """It may be another one tomorrow."""
    asked = Asked("cuda")

    for _ in range(2):
        target_cache.describe(cache, ENGINE, "cuda", asked)

    assert asked.n_times == 2


def test_asks_again_where_a_library_was_built_anew(cache: Cache, package: Path) -> None:
    """Under the same version it may hold another compiler."""
    asked = Asked()

    for content in (b"first", b"other LLVM", b"other LLVM"):
        library = package / "lib" / "liball.so"
        if library.read_bytes() != content:
            library.write_bytes(content)
        target_cache.describe(cache, ENGINE, "llvm", asked)

    assert asked.n_times == 2


def test_asks_again_where_an_environment_has_other_packages(cache: Cache, tmp_path: Path) -> None:
    """That of an engine with one of its own, of which ours says nothing."""
    asked = Asked()
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    interpreter = Interpreter(str(tmp_path / "bin" / "python"), {})

    for version in ("0.19", "0.19", "0.20"):
        (packages / f"tvm-{version}.dist-info").mkdir(parents=True, exist_ok=True)
        target_cache.describe(cache, ENGINE, "llvm", asked, interpreter)

    assert asked.n_times == 2
