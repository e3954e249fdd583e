"""A data directory that the tests of a module share, so that each library is compiled once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tuner


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the records and the cache of a module."""
    return tmp_path_factory.mktemp("jit")


@pytest.fixture
def jit(data_dir: Path) -> Callable[..., Any]:
    """Return :func:`tuner.jit` with that data directory."""

    def make(function: Any, **options: Any) -> Any:
        return tuner.jit(function, **{"data_dir": data_dir, **options})

    return make
