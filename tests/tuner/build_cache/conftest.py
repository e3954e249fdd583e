"""A cache and its warnings."""

from pathlib import Path

import pytest

from tuner.build_cache.cache import Cache


@pytest.fixture
def warnings() -> list[str]:
    """The warnings of the cache."""
    return []


@pytest.fixture
def cache(tmp_path: Path, warnings: list[str]) -> Cache:
    """An empty cache, whose folder does not exist yet."""
    return Cache(tmp_path / "cache", warn=warnings.append)
