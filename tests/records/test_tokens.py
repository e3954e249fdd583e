"""Tokens: shown once, kept as a hash, and good until they end."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from records import tokens
from records.errors import NoSuchRow
from records.models import now


def test_only_a_hash_is_kept(session: Session) -> None:
    """The secret finds its token, and no column holds it."""
    token, secret = tokens.create_token(session, "ci", ["submit"])

    assert secret not in str(vars(token))
    assert tokens.find_token(session, secret) is token
    assert tokens.find_token(session, secret + "x") is None
    assert tokens.has_tokens(session)


def test_tokens_end(session: Session) -> None:
    """One that expired or was revoked is none."""
    _, old = tokens.create_token(session, "old", ["read"], timedelta(seconds=-1))
    _, gone = tokens.create_token(session, "gone", ["read"])
    tokens.revoke_token(session, "gone")

    assert tokens.find_token(session, old) is None
    assert tokens.find_token(session, gone) is None
    assert not tokens.has_tokens(session)
    assert [token.name for token in tokens.list_tokens(session)] == ["old", "gone"]


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        ([], []),
        (["read"], ["read"]),
        (["submit"], ["read", "submit"]),
        (["admin"], ["read", "submit", "admin"]),
        (["read", "unheard of"], ["read"]),
    ],
)
def test_scopes_include_the_lesser_ones(scopes: list[str], allowed: list[str]) -> None:
    """Who may submit may read, and an admin may all."""
    assert [scope for scope in tokens.SCOPES if tokens.allows(scopes, scope)] == allowed


@pytest.mark.parametrize(
    ("name", "scopes"), [("ci", []), ("ci", ["root"]), (" ", ["read"]), ("a\nb", ["read"])]
)
def test_a_token_that_makes_no_sense_is_refused(
    session: Session, name: str, scopes: list[str]
) -> None:
    """It needs a name that prints, and scopes that exist."""
    with pytest.raises(ValueError, match="got"):
        tokens.create_token(session, name, scopes)


def test_names_are_unique(session: Session) -> None:
    """A second token of a name is refused, and the transaction goes on."""
    tokens.create_token(session, "ci", ["read"])
    with pytest.raises(ValueError, match="already"):
        tokens.create_token(session, "ci", ["read"])

    tokens.create_token(session, "other", ["read"])
    with pytest.raises(NoSuchRow, match="no token 'nobody'"):
        tokens.revoke_token(session, "nobody")


def test_use_is_noted_by_the_minute(session: Session) -> None:
    """A token that is used all the time is not written all the time."""
    token, _ = tokens.create_token(session, "ci", ["read"])

    assert tokens.touch(session, token.id, None)
    assert not tokens.touch(session, token.id, now())
    assert tokens.touch(session, token.id, now() - timedelta(minutes=2))
