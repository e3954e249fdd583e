"""``tuner token``: made once, listed without its secret, ended."""

from pathlib import Path

import pytest

from records import database, tokens
from tests.tuner.cli.commands.conftest import Shell


def test_a_token_is_shown_once(shell: Shell) -> None:
    """On stdout alone; the list knows who it is for, and the database only its hash."""
    made = shell("token", "create", "ci", "--scope", "submit", "--days", "90")
    listed = shell("token", "ls", "--json")

    secret = made.out.strip()
    assert secret.startswith("tuner_")
    assert secret not in listed.out
    (row,) = listed.json["tokens"]
    assert (row["name"], row["scopes"], row["revoked"]) == ("ci", ["submit"], None)
    assert row["expires"] > row["created"]


def test_a_token_is_ended(shell: Shell) -> None:
    """By its name; twice does no harm."""
    made = shell("token", "create", "ci", "--json").json
    shell("token", "revoke", "ci")
    again = shell("token", "revoke", "ci", "--json")

    assert made["scopes"] == ["read"]
    assert again.json["revoked"] is not None
    assert "revoked" in shell("token", "ls").out.lower()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("create", "x", "--scope", "root"), "scopes must be of read, submit, admin"),
        (("create", " "), "printable name"),
        (("create", "x", "--days", "0"), "--days must lie above 0"),
        (("create", "x", "--days", "nan"), "--days must lie above 0"),
        (("revoke", "nobody"), "no token 'nobody'; tuner token ls lists them"),
    ],
)
def test_a_wrong_request_is_refused(
    shell: Shell, arguments: tuple[str, ...], complaint: str
) -> None:
    """In one line, with status 2."""
    answer = shell("token", *arguments)

    assert answer.status == 2
    assert complaint in answer.err


def test_a_name_is_taken_once(shell: Shell) -> None:
    """Even by a token that is over."""
    shell("token", "create", "ci")
    shell("token", "revoke", "ci")

    assert "there is a token 'ci' already" in shell("token", "create", "ci").err


def test_the_service_finds_it(shell: Shell, tmp_path: Path) -> None:
    """In the database that was named."""
    url = f"sqlite:///{tmp_path}/other.db"
    secret = shell("token", "create", "ci", "--database", url).out.strip()
    engine = database.open_database(url)
    with database.sessions(engine)() as session:
        found = tokens.find_token(session, secret)
    engine.dispose()

    assert found is not None
