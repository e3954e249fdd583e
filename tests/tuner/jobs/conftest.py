"""Databases of both kinds."""

from tests.records.conftest import (
    idle_postgres,
    migrated,
    migrated_postgres,
    migrated_sqlite,
    postgres,
    postgres_template,
    sqlite_template,
    sqlite_url,
)

__all__ = [
    "idle_postgres",
    "migrated",
    "migrated_postgres",
    "migrated_sqlite",
    "postgres",
    "postgres_template",
    "sqlite_template",
    "sqlite_url",
]
