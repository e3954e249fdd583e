"""The tables of version 0.1: what later versions upgrade from.

A new database gets the tables of the models and the newest revision (``migrations.migrate``), so
that there is nothing to do here. Databases from before version 0.1 have other revisions.
"""

revision = "version_0_1"
down_revision = None


def upgrade() -> None:
    """Change nothing: the tables are there."""
