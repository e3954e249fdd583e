"""The API that the files of deploy/ are about, and a library that runs without the tuner."""

from pathlib import Path

import pytest

from tests.api.conftest import quick
from tests.deploy.small_network import bucketed, built, tailed
from tests.deploy.wheels import build_wheel

__all__ = ["bucketed", "built", "quick", "tailed"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the tuner."""
    return build_wheel(tmp_path_factory.mktemp("wheels"))
