"""Who asks: tokens looked up in the database, and remembered for a few seconds."""

import logging
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from api.single_flight import SingleFlight
from records import tokens
from records.models import now

_LOG = logging.getLogger("api.auth")
COOKIE = "tuner_token"
ANONYMOUS = "anonymous"
#: A token that is revoked is good for so long at most.
REMEMBER_SECS = 5.0
_MOST_REMEMBERED = 10_000
_SEEN_EVERY = timedelta(minutes=1)


@dataclass(frozen=True)
class Subject:
    """Who asks, from where, and what they may do."""

    name: str
    scopes: tuple[str, ...]
    address: str

    def allows(self, scope: str) -> bool:
        """Return whether they may do what a scope is for."""
        return tokens.allows(self.scopes, scope)


@dataclass(frozen=True)
class Known:
    """A token that was good when it was looked up."""

    name: str
    scopes: tuple[str, ...]
    expires: datetime | None


@dataclass
class Tokens:
    """Finds tokens by their secrets; a look-up holds for ``REMEMBER_SECS``."""

    sessions: sessionmaker[Session]
    readers: sessionmaker[Session]
    _found: dict[str, tuple[float, Known | None]] = field(default_factory=dict)
    _flights: SingleFlight[Known | None] = field(default_factory=SingleFlight)

    async def find(self, secret: str) -> Known | None:
        """Return the token of a secret, if it is good."""
        key = tokens.digest(secret)
        at, token = self._found.get(key, (-REMEMBER_SECS, None))
        if time.monotonic() - at >= REMEMBER_SECS:
            token = await self._flights.join(
                key, lambda: run_in_threadpool(self._look_up, key, secret)
            )
        return None if token is None or _is_over(token) else token

    def remembered(self, secret: str) -> str | None:
        """Return the name of a token that was good lately, without looking it up."""
        _, token = self._found.get(tokens.digest(secret), (0.0, None))
        return None if token is None else token.name

    def _look_up(self, key: str, secret: str) -> Known | None:
        at = time.monotonic()
        with self.readers() as session:
            row = tokens.find_token(session, secret)
        if len(self._found) >= _MOST_REMEMBERED:
            self._found.clear()
        token = None if row is None else Known(row.name, tuple(row.scopes), row.expires)
        self._found[key] = (at, token)
        if row is not None and (row.last_used is None or now() - row.last_used > _SEEN_EVERY):
            self._note_use(row.id, row.last_used)
        return token

    def _note_use(self, token_id: int, last_used: datetime | None) -> None:
        """Note that a token was used; where nothing can be written, reading goes on."""
        try:
            with self.sessions.begin() as session:
                tokens.touch(session, token_id, last_used)
        except SQLAlchemyError as error:
            _LOG.warning("cannot note that a token was used: %s", type(error).__name__)


def secret_of(connection: HTTPConnection) -> tuple[str | None, bool]:
    """Return the secret that came with a request, and whether it came as a cookie."""
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip(), False
    cookie = connection.cookies.get(COOKIE)
    return cookie or None, True


def address_of(connection: HTTPConnection) -> str:
    """Return the address of the client."""
    return connection.client.host if connection.client else "unknown"


def _is_over(token: Known) -> bool:
    return token.expires is not None and token.expires <= now()
