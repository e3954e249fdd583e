"""``tuner token``: creation, listing and revocation."""

from pathlib import Path

import pytest

from records import database
from records.service.owners import tokens
from tests.tuner.cli.commands.conftest import Shell


def test_a_token_is_shown_once(shell: Shell) -> None:
    """Only the creation prints the secret, alone on stdout."""
    made = shell("token", "create", "ci", "--scope", "submit", "--days", "90")
    listed = shell("token", "ls", "--json")

    secret = made.out.strip()
    assert secret.startswith("tuner_")
    assert secret not in listed.out
    (row,) = listed.json["tokens"]
    assert (row["name"], row["scopes"], row["revoked"]) == ("ci", ["submit"], None)
    assert row["expires"] > row["created"]


def test_a_token_is_revoked_by_name(shell: Shell) -> None:
    """Revoking it again is harmless."""
    made = shell("token", "create", "ci", "--json").json
    shell("token", "revoke", "ci")
    again = shell("token", "revoke", "ci", "--json")

    assert made["scopes"] == ["read"]
    assert again.json["revoked"] is not None
    assert "revoked" in shell("token", "ls").out.lower()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("create", "x", "--scope", "root"), "scopes must be among read, submit, admin"),
        (("create", " "), "printable name"),
        (("create", "x", "--days", "0"), "--days must be above 0"),
        (("create", "x", "--days", "nan"), "--days must be above 0"),
        (("revoke", "none"), "no token 'none'; list the tokens with `tuner token ls`"),
    ],
)
def test_a_wrong_request_is_refused(
    shell: Shell, arguments: tuple[str, ...], complaint: str
) -> None:
    """The error is one line and the status 2."""
    answer = shell("token", *arguments)

    assert answer.status == 2
    assert complaint in answer.err


def test_a_name_is_used_once(shell: Shell) -> None:
    """The name of a revoked token stays in use."""
    shell("token", "create", "ci")
    shell("token", "revoke", "ci")

    assert "a token 'ci' already exists" in shell("token", "create", "ci").err


def test_a_token_is_stored_in_the_named_database(shell: Shell, tmp_path: Path) -> None:
    """The service looks it up there by its secret."""
    url = f"sqlite:///{tmp_path}/other.db"
    secret = shell("token", "create", "ci", "--database", url).out.strip()
    engine = database.open_database(url)
    with database.sessions(engine)() as session:
        token = tokens.find_token(session, secret)
    engine.dispose()

    assert token is not None
