"""The API that the files of deploy/ are about."""

from tests.api.conftest import migrated_sqlite, quick, sqlite_template, sqlite_url

__all__ = ["migrated_sqlite", "quick", "sqlite_template", "sqlite_url"]
