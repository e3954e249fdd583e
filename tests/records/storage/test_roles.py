"""Roles of PostgreSQL: the API and the worker work with theirs, and cannot do more."""

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Engine, make_url, select
from sqlalchemy.exc import ProgrammingError

from records import database
from records.service import builds
from records.service.owners import audit, tokens
from records.service.service_models import ApiToken, Lease
from records.storage import roles
from records.storage.roles import API, PASSWORDS, WORKER
from records.tuning import attempts
from tests.records import make

SECRETS = {API: "the API's: 100% 'quoted'", WORKER: "the worker's"}


@pytest.fixture
def urls(migrated_postgres: str) -> Iterator[dict[str, str]]:
    """URL of a migrated database for the owner and for each role."""
    environ = {PASSWORDS[role]: secret for role, secret in SECRETS.items()}
    assert roles.main({"TUNER_DATABASE": migrated_postgres, **environ}) == 0
    yield {
        "owner": migrated_postgres,
        **{
            role: make_url(migrated_postgres)
            .set(username=role, password=secret)
            .render_as_string(hide_password=False)
            for role, secret in SECRETS.items()
        },
    }
    with psycopg.connect(migrated_postgres, autocommit=True) as connection:
        for role in SECRETS:
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


@pytest.fixture
def worker(urls: dict[str, str]) -> Iterator[Engine]:
    """The database, opened by a worker."""
    engine = database.open_database(urls[WORKER])
    yield engine
    engine.dispose()


@pytest.fixture
def api(urls: dict[str, str]) -> Iterator[Engine]:
    """The database, opened by the API."""
    engine = database.open_database(urls[API])
    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM api_token",
        "INSERT INTO api_token (name, digest) VALUES ('x', 'x')",
        "DELETE FROM api_token",
        "UPDATE audit_event SET action = 'x'",
        "CREATE TABLE mine (id int)",
        "DROP TABLE measure_record",
        "UPDATE alembic_version SET version_num = 'x'",
        "CREATE ROLE other SUPERUSER",
        "ALTER ROLE tuner_worker SUPERUSER",
        "SET ROLE postgres",
        "COPY job TO PROGRAM 'true'",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT rolpassword FROM pg_authid",
    ],
)
def test_a_worker_cannot_do_more(worker: Engine, statement: str) -> None:
    """It could become an administrator, or run programs on the server."""
    with worker.connect() as connection, pytest.raises(ProgrammingError) as caught:
        connection.exec_driver_sql(statement)

    assert "InsufficientPrivilege" in repr(caught.value.orig)


def test_a_worker_does_its_work(worker: Engine) -> None:
    """Leases, jobs, builds and events are its own."""
    with database.sessions(worker).begin() as session:
        build = builds.request_build(session, make.job(session))
        builds.set_build(session, build.id, "running")
        assert [item.build.id for item in builds.waiting(session)] == [build.id]
        attempts.quarantine_build(session, build.id)
        assert not list(session.scalars(select(Lease)))


def test_the_api_manages_tokens_but_no_tables(api: Engine) -> None:
    """It creates tokens and writes the audit log."""
    with database.sessions(api).begin() as session:
        assert not list(session.scalars(select(ApiToken)))
        tokens.create_token(session, "admin", ["admin"])
        assert len(list(session.scalars(select(ApiToken)))) == 1
        audit.log_action(session, "admin", "127.0.0.1", "tune")
    with api.connect() as connection, pytest.raises(ProgrammingError):
        connection.exec_driver_sql("DROP TABLE job")


def test_roles_can_be_set_up_again(urls: dict[str, str]) -> None:
    """With another password, after an upgrade."""
    environ = {PASSWORDS[API]: "new", PASSWORDS[WORKER]: SECRETS[WORKER]}
    assert roles.main({"TUNER_DATABASE": urls["owner"], **environ}) == 0

    url = make_url(urls[API]).set(password="new").render_as_string(hide_password=False)
    database.open_database(url).dispose()
    database.open_database(urls[WORKER]).dispose()


def test_an_owner_need_not_be_a_superuser(postgres_url: str) -> None:
    """It may create roles, as that of a hosted database, and sets them up again and again."""
    name = make_url(postgres_url).database
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(b"CREATE ROLE tuner LOGIN CREATEROLE PASSWORD 'x'")
        connection.execute(f'ALTER DATABASE "{name}" OWNER TO tuner'.encode())
    owner = make_url(postgres_url).set(username="tuner", password="x")
    environ = {
        "TUNER_DATABASE": owner.render_as_string(hide_password=False),
        **{PASSWORDS[role]: secret for role, secret in SECRETS.items()},
    }
    try:
        assert [roles.main(environ) for _ in range(2)] == [0, 0]
        url = owner.set(username=WORKER, password=SECRETS[WORKER])
        database.open_database(url.render_as_string(hide_password=False)).dispose()
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{name}" OWNER TO CURRENT_USER'.encode())
            connection.execute(b"REASSIGN OWNED BY tuner TO CURRENT_USER")
            for role in (*SECRETS, "tuner"):
                connection.execute(f"DROP OWNED BY {role}".encode())
                connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TUNER_DATABASE": "sqlite:///x.db", **dict.fromkeys(PASSWORDS.values(), "x")},
        {"TUNER_DATABASE": "postgresql://x", PASSWORDS[API]: "x", PASSWORDS[WORKER]: ""},
    ],
)
def test_missing_settings_are_named(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is changed."""
    assert roles.main(environ) == 2
    assert "TUNER_DB_WORKER_PASSWORD" in capsys.readouterr().err
