"""Tokens are shown once, stored as a hash, and valid until they expire or are revoked."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import now
from records.service.owners import tokens


def test_only_a_hash_is_stored(session: Session) -> None:
    """The secret identifies its token, and no column contains it."""
    token, secret = tokens.create_token(session, "ci", ["submit"])

    assert secret not in str(vars(token))
    assert tokens.find_token(session, secret) is token
    assert tokens.find_token(session, secret + "x") is None
    assert tokens.has_tokens(session)


def test_tokens_end(session: Session) -> None:
    """Expired and revoked tokens are not valid."""
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
        (["admin"], ["read", "submit", "admin", "measure"]),
        (["measure"], ["measure"]),
        (["read", "unheard of"], ["read"]),
    ],
)
def test_scopes_include_the_lesser_ones(scopes: list[str], allowed: list[str]) -> None:
    """Submit includes read, admin includes all."""
    scopes_of_routes = (*tokens.SCOPES, tokens.MEASURE)
    assert [scope for scope in scopes_of_routes if tokens.allows(scopes, scope)] == allowed


@pytest.mark.parametrize(
    ("name", "scopes"),
    [
        ("ci", []),
        ("ci", ["root"]),
        (" ", ["read"]),
        ("a\nb", ["read"]),
        ("anonymous", ["read"]),
    ],
)
def test_an_invalid_token_is_refused(session: Session, name: str, scopes: list[str]) -> None:
    """A token needs a printable name and known scopes."""
    with pytest.raises(ValueError, match="got"):
        tokens.create_token(session, name, scopes)


def test_names_are_unique(session: Session) -> None:
    """A duplicate name is refused, and the transaction continues."""
    tokens.create_token(session, "ci", ["read"])
    with pytest.raises(ValueError, match="already"):
        tokens.create_token(session, "ci", ["read"])

    tokens.create_token(session, "other", ["read"])
    with pytest.raises(NoSuchRow, match="no token 'unknown'"):
        tokens.revoke_token(session, "unknown")


def test_a_renewed_token_has_another_secret(session: Session) -> None:
    """The old secret ends at once, and a revoked token is valid again."""
    token, old = tokens.create_token(session, "ci", ["read"], timedelta(seconds=-1))
    tokens.revoke_token(session, "ci")
    renewed, secret = tokens.renew_token(session, "ci")

    assert renewed is token
    assert tokens.find_token(session, secret) is token
    assert tokens.find_token(session, old) is None
    with pytest.raises(NoSuchRow):
        tokens.renew_token(session, "unknown")


def test_last_use_is_stored_once_a_minute(session: Session) -> None:
    """A token in constant use is not written constantly."""
    token, _ = tokens.create_token(session, "ci", ["read"])

    assert tokens.touch(session, token.id, None)
    assert not tokens.touch(session, token.id, now())
    assert tokens.touch(session, token.id, now() - timedelta(minutes=2))
