"""API tokens: who may do what; a token is shown once, and only its hash is kept."""

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import now
from records.service_models import ApiToken

#: What a token may allow; each allows what those before it do.
SCOPES = ("read", "submit", "admin")
_PREFIX = "tuner_"
# Seen by the minute: every request would otherwise be a write.
_SEEN_EVERY = timedelta(minutes=1)


def create_token(
    session: Session, name: str, scopes: Sequence[str], lifetime: timedelta | None = None
) -> tuple[ApiToken, str]:
    """Make a token and return its row with its secret, which nobody can read again.

    Args:
        session: The transaction.
        name: Who it is for; unique.
        scopes: Of ``SCOPES``, at least one.
        lifetime: How long it is good for; None for ever.

    Raises:
        ValueError: If a scope is unknown, none is given, or the name is taken or empty.
    """
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise ValueError(f"scopes must be of {', '.join(SCOPES)}, got {list(scopes)}")
    if not name.strip() or not name.isprintable():
        raise ValueError(f"a token needs a printable name, got {name!r}")
    # 256 random bits need no slow hash: there is nothing to guess.
    secret = _PREFIX + secrets.token_urlsafe(32)
    expires = None if lifetime is None else now() + lifetime
    token = ApiToken(name=name, digest=digest(secret), scopes=list(scopes), expires=expires)
    try:
        with session.begin_nested():
            session.add(token)
    except IntegrityError as error:
        raise ValueError(
            f"there is a token {name!r} already; revoke it, or name another"
        ) from error
    return token, secret


def find_token(session: Session, secret: str) -> ApiToken | None:
    """Return the token of a secret, if it is good now."""
    token = session.scalars(select(ApiToken).where(ApiToken.digest == digest(secret))).one_or_none()
    return token if token is not None and _is_good(token, now()) else None


def has_tokens(session: Session) -> bool:
    """Return whether any token is good now."""
    return any(_is_good(token, now()) for token in session.scalars(select(ApiToken)))


def touch(session: Session, token_id: int, seen: datetime | None) -> bool:
    """Note that a token was used, unless that was noted a moment ago."""
    at = now()
    if seen is not None and at - seen < _SEEN_EVERY:
        return False
    session.execute(update(ApiToken).where(ApiToken.id == token_id).values(last_used=at))
    return True


def list_tokens(session: Session) -> list[ApiToken]:
    """Return all tokens, the oldest first, those revoked among them."""
    return list(session.scalars(select(ApiToken).order_by(ApiToken.id)))


def revoke_token(session: Session, name: str) -> ApiToken:
    """End a token.

    Raises:
        NoSuchRow: If there is none of that name.
    """
    token = session.scalars(select(ApiToken).where(ApiToken.name == name)).one_or_none()
    if token is None:
        raise NoSuchRow(f"no token {name!r}")
    token.revoked = token.revoked or now()
    session.flush()
    return token


def allows(scopes: Sequence[str], wanted: str) -> bool:
    """Return whether scopes include one: admin includes submit, and submit read."""
    return any(SCOPES.index(scope) >= SCOPES.index(wanted) for scope in scopes if scope in SCOPES)


def digest(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _is_good(token: ApiToken, at: datetime) -> bool:
    return token.revoked is None and (token.expires is None or token.expires > at)
