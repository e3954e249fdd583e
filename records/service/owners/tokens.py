"""API tokens and their scopes; a secret is shown once, and only its hash is stored."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from records.errors import NoSuchRow
from records.models import now
from records.service.service_models import ApiToken

#: Scopes of a token, in ascending order; each includes the ones before it.
SCOPES = ("read", "submit", "admin")
#: Scopes of machines that measure, and build, over HTTPS; only admin includes them.
MEASURE, BUILD = "measure", "build"
ALL_SCOPES = (*SCOPES, MEASURE, BUILD)
#: Name of a client that sent no token; no token has it.
ANONYMOUS = "anonymous"
_MAX_DAYS = 36_500
_PREFIX = "tuner_"
# Resolution of last_used; without it every request would write.
_LAST_USED_INTERVAL = timedelta(minutes=1)


def lifetime_of(days: float | str) -> timedelta:
    """Return the time until a token expires.

    Raises:
        ValueError: Unless these are days above 0 and at most a century.
    """
    with suppress(ValueError):
        if 0 < float(days) <= _MAX_DAYS:
            return timedelta(days=float(days))
    raise ValueError(f"days must be above 0 and at most {_MAX_DAYS}, got {days!r}")


def create_token(
    session: Session,
    name: str,
    scopes: Sequence[str],
    lifetime: timedelta | None = None,
    *,
    project: str | None = None,
    quotas: Mapping[str, Any] | None = None,
) -> tuple[ApiToken, str]:
    """Create a token and return its row with its secret, which cannot be read again.

    Args:
        name: Unique name of the holder, who owns the jobs that it submits.
        scopes: At least one of ``ALL_SCOPES``.
        lifetime: Time until the token expires; None for never.
        project: Group whose jobs the token may read; None for none.
        quotas: Quotas that replace those of the service, see :mod:`records.service.owners.quotas`.

    Raises:
        ValueError: If a scope is unknown, none is given, or the name is empty, reserved or in use.
    """
    if not scopes or not set(scopes) <= set(ALL_SCOPES):
        raise ValueError(f"scopes must be among {', '.join(ALL_SCOPES)}, got {list(scopes)}")
    if not name.strip() or not name.isprintable() or name == ANONYMOUS:
        raise ValueError(f"a token needs a printable name other than {ANONYMOUS}, got {name!r}")
    if project is not None and (not project.strip() or not project.isprintable()):
        raise ValueError(f"a project needs a printable name, got {project!r}")
    # A fast hash is sufficient for 256 random bits, which cannot be guessed.
    secret, at = _PREFIX + secrets.token_urlsafe(32), now()
    token = ApiToken(
        name=name,
        digest=digest(secret),
        scopes=list(scopes),
        created=at,
        expires=None if lifetime is None else at + lifetime,
        project=project,
        quotas=dict(quotas) if quotas else None,
    )
    try:
        with session.begin_nested():
            session.add(token)
    except IntegrityError as error:
        raise ValueError(f"a token {name!r} already exists; choose another name") from error
    return token, secret


def find_token(session: Session, secret: str) -> ApiToken | None:
    """Return the token of a secret if it is valid, else None."""
    token = session.scalars(select(ApiToken).where(ApiToken.digest == digest(secret))).one_or_none()
    return token if token is not None and _is_valid(token, now()) else None


def has_tokens(session: Session) -> bool:
    """Return whether any token is valid."""
    return any(_is_valid(token, now()) for token in session.scalars(select(ApiToken)))


def touch(session: Session, token_id: int, last_used: datetime | None) -> bool:
    """Update the time of last use, unless it is less than a minute old."""
    at = now()
    if last_used is not None and at - last_used < _LAST_USED_INTERVAL:
        return False
    session.execute(update(ApiToken).where(ApiToken.id == token_id).values(last_used=at))
    return True


def list_tokens(session: Session) -> list[ApiToken]:
    """Return all tokens, including revoked ones, the oldest first."""
    return list(session.scalars(select(ApiToken).order_by(ApiToken.id)))


def renew_token(
    session: Session, name: str, lifetime: timedelta | None = None
) -> tuple[ApiToken, str]:
    """Give a token a new secret; the old one ends, and the jobs of the token stay its own.

    Raises:
        NoSuchRow: If no token has that name.
    """
    token = _named(session, name)
    secret, at = _PREFIX + secrets.token_urlsafe(32), now()
    token.digest, token.revoked = digest(secret), None
    # From the same time, so that the next renewal knows the lifetime.
    token.created, token.expires = at, None if lifetime is None else at + lifetime
    session.flush()
    return token, secret


def revoke_token(session: Session, name: str) -> ApiToken:
    """Revoke a token.

    Raises:
        NoSuchRow: If no token has that name.
    """
    token = _named(session, name)
    token.revoked = token.revoked or now()
    session.flush()
    return token


def described(token: ApiToken) -> dict[str, Any]:
    """Return what the audit log notes of a token, as JSON."""
    return {
        "name": token.name,
        "scopes": token.scopes,
        "project": token.project,
        "quotas": token.quotas or {},
        "expires": None if token.expires is None else token.expires.isoformat(),
    }


def allows(scopes: Sequence[str], required: str) -> bool:
    """Return whether scopes include a required one: admin includes submit, submit includes read."""
    if required not in SCOPES:
        return required in scopes or "admin" in scopes
    return any(SCOPES.index(scope) >= SCOPES.index(required) for scope in scopes if scope in SCOPES)


def digest(secret: str) -> str:
    """Return the hash under which a secret is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _named(session: Session, name: str) -> ApiToken:
    token = session.scalars(select(ApiToken).where(ApiToken.name == name)).one_or_none()
    if token is None:
        raise NoSuchRow(f"no token {name!r}")
    return token


def _is_valid(token: ApiToken, at: datetime) -> bool:
    return token.revoked is None and (token.expires is None or token.expires > at)
