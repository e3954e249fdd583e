"""A later version of this program, whose schema has a column more."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from records import migrations

REVISION = "9999"
_MIGRATION = f"""
from alembic.op import add_column
from sqlalchemy import Column, Text

revision = {REVISION!r}
down_revision = {migrations.newest()!r}


def upgrade():
    add_column("job", Column("later", Text(), nullable=False, server_default="new"))
"""


@contextmanager
def later_version(folder: Path) -> Iterator[None]:
    """Have this process be one of the later version, to which a database of this one is older."""
    shutil.copytree(migrations._FOLDER, folder)
    (folder / "versions" / "later.py").write_text(_MIGRATION)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "_FOLDER", folder)
        migrations._known.cache_clear()
        yield
    migrations._known.cache_clear()
