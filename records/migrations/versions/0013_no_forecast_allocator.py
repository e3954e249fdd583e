"""Give jobs of the allocator ``forecast``, which was removed, the gradient (decision 0039).

Revision ID: 0013
"""

from alembic.op import get_bind
from sqlalchemy import JSON, Integer, column, select, table, update

revision = "0013"
down_revision = "0012"
_COLUMNS = ("request", "settings")
_JOB = table("job", column("id", Integer), *(column(name, JSON) for name in _COLUMNS))


def upgrade() -> None:
    connection = get_bind()
    for name in _COLUMNS:
        stored = _JOB.c[name]
        removed = select(_JOB.c.id, stored).where(stored["allocator"].as_string() == "forecast")
        for job_id, options in connection.execute(removed).all():
            replaced = {name: options | {"allocator": "gradient"}}
            connection.execute(update(_JOB).where(_JOB.c.id == job_id).values(replaced))


def downgrade() -> None:
    """Change nothing: revision 0012 has the gradient, too."""
