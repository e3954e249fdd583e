"""The API that the files of deploy/ are about, and a library that runs without the tuner."""

from tests.api.conftest import migrated_sqlite, quick, sqlite_template, sqlite_url
from tests.deploy.small_network import built

__all__ = ["built", "migrated_sqlite", "quick", "sqlite_template", "sqlite_url"]
