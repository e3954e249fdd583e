"""A data directory that the tests of a module share: what one compiles the next finds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tuner


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the records and the cache of a module are."""
    return tmp_path_factory.mktemp("jit")


@pytest.fixture
def jit(data_dir: Path) -> Callable[..., Any]:
    """:func:`tuner.jit` on that directory."""

    def make(function: Any, **options: Any) -> Any:
        return tuner.jit(function, **{"data_dir": data_dir, **options})

    return make
