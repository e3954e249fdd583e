"""Entries for tests, with files that compress and one that does not."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuner.build_cache.cache import Cache
from tuner.build_cache.entries import Entry
from tuner.build_cache.keys import Key

CODE = b"code " * 200
WEIGHTS = random.Random(0).randbytes((1 << 20) + 17)

Make = Callable[[Path], Mapping[str, Any]]


def key(number: int = 0, kind: str = "subgraph", **parts: Any) -> Key:
    """Return the key of a number."""
    return Key(kind, {"workload": f"{number:016x}", "target": {"mcpu": "znver4"}, **parts}, "conv")


def small(folder: Path) -> dict[str, Any]:
    """Write a file that compresses and an empty one."""
    (folder / "code.o").write_bytes(CODE)
    (folder / "empty").touch()
    return {"n_calls": 3}


def large(folder: Path) -> dict[str, Any]:
    """Write small files and one that becomes a blob."""
    (folder / "weights.bin").write_bytes(WEIGHTS)
    return small(folder)


def made(cache: Cache, missing: Key, make: Make = small) -> Entry:
    """Make an entry that the cache does not have."""
    result = cache.get_or_make(missing, make)
    assert not result.hit
    return result.entry


def put(cache: Cache, missing: Key, make: Make = small) -> Path:
    """Make an entry and close it; return the path of its file."""
    made(cache, missing, make).close()
    return cache.local.path_of(missing.kind, missing.digest)


def names(folder: Path) -> list[str]:
    """Return the path of every file below a folder, temporary ones and locks included."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
