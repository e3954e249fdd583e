"""A cache, and what it complained about."""

from pathlib import Path

import pytest

from tuner.build_cache.cache import Cache


@pytest.fixture
def warnings() -> list[str]:
    """What the cache warned of."""
    return []


@pytest.fixture
def cache(tmp_path: Path, warnings: list[str]) -> Cache:
    """An empty cache, whose folder does not exist yet."""
    return Cache(tmp_path / "cache", warn=warnings.append)
