"""Databases of both kinds."""

from tests.records.conftest import (
    migrated,
    migrated_postgres,
    migrated_sqlite,
    postgres,
    postgres_template,
    sqlite_template,
    sqlite_url,
)

__all__ = [
    "migrated",
    "migrated_postgres",
    "migrated_sqlite",
    "postgres",
    "postgres_template",
    "sqlite_template",
    "sqlite_url",
]
