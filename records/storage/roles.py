"""Roles of PostgreSQL for the API and the worker, which neither own tables nor are superusers.

``python -m records.storage.roles`` sets up the roles in the database that ``TUNER_DATABASE``
names, as its owner, with passwords from the environment. It creates the tables of an empty
database, and refuses one that has to be upgraded first. It may be repeated: after an upgrade, or
with new passwords.
"""

import os
import sys
from collections.abc import Mapping

from sqlalchemy import Engine, text

from records.database import open_database
from records.errors import RecordsError

API, WORKER = "tuner_api", "tuner_worker"
# Environment variables with their passwords.
PASSWORDS = {API: "TUNER_DB_API_PASSWORD", WORKER: "TUNER_DB_WORKER_PASSWORD"}
_IS_PRIVILEGED = text(
    "SELECT rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls"
    " FROM pg_roles WHERE rolname = :role"
)
_UNPRIVILEGED = "NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS"
# Statements that define roles take no parameters; the server quotes the values.
_DEFINITION = text(
    "SELECT format('%s ROLE %I LOGIN %s PASSWORD %L', cast(:verb AS text), cast(:role AS text),"
    " cast(:attributes AS text), cast(:password AS text))"
)


def set_up_roles(engine: Engine, passwords: Mapping[str, str]) -> None:
    """Create or change roles that read and write rows, but neither define tables nor roles.

    Args:
        engine: A migrated PostgreSQL database, as its owner and with the right to create roles.
        passwords: Password by role, of :data:`API` and :data:`WORKER`.
    """
    with engine.begin() as connection:
        for role, password in passwords.items():
            is_privileged = connection.scalar(_IS_PRIVILEGED, {"role": role})
            values = {
                "verb": "CREATE" if is_privileged is None else "ALTER",
                "role": role,
                # Only a superuser may repeat what a role is not.
                "attributes": "" if is_privileged is False else _UNPRIVILEGED,
                "password": password,
            }
            connection.exec_driver_sql(
                (connection.scalar(_DEFINITION, values) or "").replace("%", "%%")
            )
            for statement in (
                f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}",
                f"GRANT USAGE ON SCHEMA public TO {role}",
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
                f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {role}",
                f"REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM {role}",
            ):
                connection.exec_driver_sql(statement)
            if role == WORKER:
                # It removes old entries of the audit log, and needs no tokens at all.
                connection.exec_driver_sql(f"REVOKE INSERT, UPDATE ON audit_event FROM {role}")
                connection.exec_driver_sql(f"REVOKE ALL ON api_token FROM {role}")


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Set up the roles of a database; return the exit status."""
    passwords = {role: environ[name] for role, name in PASSWORDS.items() if environ.get(name)}
    url = environ.get("TUNER_DATABASE", "")
    if not url.startswith("postgresql") or len(passwords) < len(PASSWORDS):
        names = ", ".join(PASSWORDS.values())
        sys.stderr.write(f"set TUNER_DATABASE to a PostgreSQL database, and {names}\n")
        return 2
    try:
        engine = open_database(url)
    except RecordsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    try:
        set_up_roles(engine, passwords)
    finally:
        engine.dispose()
    return 0


if __name__ == "__main__":
    sys.exit(main())
