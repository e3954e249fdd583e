"""Entries for tests: small ones, and one with a file that does not compress."""

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
    """One key a number."""
    return Key(kind, {"workload": f"{number:016x}", "target": {"mcpu": "znver4"}, **parts}, "conv")


def small(folder: Path) -> dict[str, Any]:
    """Make what compresses, and what is empty."""
    (folder / "code.o").write_bytes(CODE)
    (folder / "empty").touch()
    return {"n_calls": 3}


def large(folder: Path) -> dict[str, Any]:
    """Make a small file and one that lies beside its entry."""
    (folder / "weights.bin").write_bytes(WEIGHTS)
    return small(folder)


def made(cache: Cache, wanted: Key, make: Make = small) -> Entry:
    """Make an entry that is not there yet."""
    found = cache.get_or_make(wanted, make)
    assert not found.hit
    return found.entry


def put(cache: Cache, wanted: Key, make: Make = small) -> Path:
    """Make an entry and let go of it; return its file."""
    made(cache, wanted, make).close()
    return cache.local.path_of(wanted.kind, wanted.digest)


def names(folder: Path) -> list[str]:
    """Every file below a folder, temporary ones and locks included."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".guard"
    )
