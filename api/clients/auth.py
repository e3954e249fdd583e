"""Authentication: tokens looked up in the database, and remembered for a few seconds."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from api.documents.caching import SingleFlight
from api.load.fair_semaphore import SENDER, Sender
from api.load.transactions import Transactions
from records.models import now
from records.service.owners import tokens
from records.service.owners.access import Viewer

_LOG = logging.getLogger("api.clients.auth")
COOKIE = "tuner_token"
ANONYMOUS = tokens.ANONYMOUS
#: Key of the name of the sender in the scope of a request, for the access log.
SUBJECT = "tuner.subject"
#: Time for which a look-up holds: a revoked token works that much longer.
REMEMBER_SECS = 5.0
_MAX_REMEMBERED = 10_000
_LAST_USED_INTERVAL = timedelta(minutes=1)


@dataclass(frozen=True)
class Subject:
    """The sender of a request.

    Attributes:
        name: Name of the token, or ``anonymous``.
        scopes: Scopes of the token.
        address: Address of the client.
        project: Project of the token.
    """

    name: str
    scopes: tuple[str, ...]
    address: str
    project: str | None = None

    def allows(self, scope: str) -> bool:
        """Return whether the scopes include this one."""
        return tokens.allows(self.scopes, scope)

    @property
    def viewer(self) -> Viewer:
        """The sender as the database knows it."""
        return Viewer(self.name, self.project, self.allows("admin"))

    @property
    def owner(self) -> str | None:
        """Name under which the sender owns its jobs; None without a token."""
        return None if self.name == ANONYMOUS else self.name


@dataclass(frozen=True)
class ValidToken:
    """A token that was valid when it was looked up."""

    name: str
    scopes: tuple[str, ...]
    project: str | None
    expires: datetime | None


@dataclass
class Tokens:
    """Finds tokens by their secrets; a look-up holds for ``REMEMBER_SECS``.

    Attributes:
        writes: Transactions that note the use of a token, for which no request waits.
        clock: Monotonic clock, seconds.
    """

    reads: Transactions
    writes: Transactions
    clock: Callable[[], float] = time.monotonic
    _remembered: dict[str, tuple[float, ValidToken | None]] = field(default_factory=dict)
    _lookups: SingleFlight[ValidToken | None] = field(default_factory=SingleFlight)
    _notes: "dict[int, asyncio.Task[None]]" = field(default_factory=dict)

    async def find(self, secret: str) -> ValidToken | None:
        """Return the token of a secret, if it is valid and has not expired."""
        key = tokens.digest(secret)
        at, token = self._remembered.get(key, (-REMEMBER_SECS, None))
        if self.clock() - at >= REMEMBER_SECS:
            token = await self._lookups.join(key, lambda: self._look_up(key, secret))
        return None if token is None or _has_expired(token) else token

    def remembered(self, secret: str) -> str | None:
        """Return the name of a token that was valid recently, without looking it up."""
        _, token = self._remembered.get(tokens.digest(secret), (0.0, None))
        return None if token is None else token.name

    async def _look_up(self, key: str, secret: str) -> ValidToken | None:
        at = self.clock()
        row = await self.reads.run(tokens.find_token, secret)
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        token = None
        if row is not None:
            token = ValidToken(row.name, tuple(row.scopes), row.project, row.expires)
            if row.last_used is None or now() - row.last_used > _LAST_USED_INTERVAL:
                self._start_note(row.id, row.last_used)
        self._remembered[key] = (at, token)
        return token

    def _start_note(self, token_id: int, last_used: datetime | None) -> None:
        if token_id not in self._notes:
            task = asyncio.create_task(self._note_use(token_id, last_used), name="token-use")
            self._notes[token_id] = task
            task.add_done_callback(lambda _: self._notes.pop(token_id))

    async def _note_use(self, token_id: int, last_used: datetime | None) -> None:
        """Store the time of use; reading works on where nothing can be written."""
        try:
            SENDER.set(Sender("tokens"))
            await self.writes.run(tokens.touch, token_id, last_used)
        except (SQLAlchemyError, HTTPException) as error:
            _LOG.warning("cannot store that a token was used: %s", type(error).__name__)


def secret_of(connection: HTTPConnection) -> tuple[str | None, bool]:
    """Return the secret of a request, and whether it came as a cookie."""
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip(), False
    cookie = connection.cookies.get(COOKIE)
    return cookie or None, True


def address_of(connection: HTTPConnection) -> str:
    """Return the address of the client."""
    return connection.client.host if connection.client else "unknown"


def client_name(connection: HTTPConnection, token: str | None) -> str:
    """Name the client whose requests are limited: a token, or an address without one."""
    return f"address {address_of(connection)}" if token is None else f"token {token}"


def _has_expired(token: ValidToken) -> bool:
    return token.expires is not None and token.expires <= now()
