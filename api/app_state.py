"""State that the requests of one API process share."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker
from starlette.requests import HTTPConnection

from api.auth import Tokens
from api.events import Hub
from api.exports import Slots
from api.incoming import Incoming
from api.limits import Buckets
from api.metrics import Metrics
from api.ownerships import Ownerships
from api.readiness import Readiness
from api.response_cache import TableCache
from api.settings import ApiSettings
from api.uploads import prepare_folders
from records import database
from records.connections import Limits
from tuner.context import open_context
from tuner.disk_floor import folders_of

#: Of requests: none holds a connection for long, and none waits long for one.
REQUEST_LIMITS = Limits(
    pool_size=10,
    max_overflow=10,
    wait_secs=10.0,
    statement_secs=30.0,
    lock_secs=15.0,
    idle_secs=60.0,
    transaction_secs=60.0,
)
#: Of exports, which read pages, and of imports, which are one transaction.
BULK_LIMITS = Limits(
    pool_size=3,
    max_overflow=0,
    statement_secs=60.0,
    lock_secs=30.0,
    idle_secs=60.0,
    transaction_secs=60.0,
)
PROBE_LIMITS = Limits(pool_size=1, max_overflow=0, wait_secs=2.0, statement_secs=3.0)


@dataclass
class State:
    """Settings, sessions, and caches between requests.

    The holder of ``importing`` is the only import of the process.

    Sessions named ``bulk`` are for exports and imports, and have connections of their own.
    """

    settings: ApiSettings
    sessions: sessionmaker[Session]
    readers: sessionmaker[Session]
    lookups: sessionmaker[Session]
    bulk_sessions: sessionmaker[Session]
    bulk_readers: sessionmaker[Session]
    exports: Slots
    incoming: Incoming
    importing: asyncio.Lock
    readiness: Readiness
    tokens: Tokens
    ownerships: Ownerships
    buckets: Buckets
    tables: TableCache
    hub: Hub
    metrics: Metrics


@asynccontextmanager
async def open_state(app: FastAPI, settings: ApiSettings) -> AsyncIterator[State]:
    """Open the database for as long as an application runs.

    Raises:
        RequestError: If the data directory cannot be written.
        RecordsError: If the database cannot be used.
    """
    with (
        open_context(
            settings.tuner.database, settings.tuner.data_dir, limits=REQUEST_LIMITS
        ) as context,
        closing_engine(database.with_limits(context.engine, BULK_LIMITS)) as bulk,
        closing_engine(database.with_limits(context.engine, PROBE_LIMITS)) as probe,
    ):
        state = State(
            settings=settings,
            sessions=context.sessions,
            readers=context.readers,
            lookups=database.lookups(context.engine),
            bulk_sessions=database.sessions(bulk),
            bulk_readers=database.sessions(bulk, read_only=True),
            exports=Slots(),
            incoming=Incoming(),
            importing=asyncio.Lock(),
            readiness=Readiness(
                probe.execution_options(sqlite_begin="BEGIN", postgresql_readonly=True)
            ),
            tokens=Tokens(context.sessions, context.readers),
            ownerships=Ownerships(context.readers),
            buckets=Buckets(settings.rate),
            tables=TableCache(context.readers),
            hub=Hub(context.readers),
            metrics=Metrics(context.readers, folders_of(settings.tuner)),
        )
        temporary = tempfile.tempdir
        tempfile.tempdir = str(prepare_folders(settings.data_dir))
        app.state.service = state
        watch = asyncio.create_task(state.readiness.watch(), name="schema-watch")
        try:
            yield state
        finally:
            watch.cancel()
            await state.hub.close()
            state.readiness.close()
            tempfile.tempdir = temporary


@contextmanager
def closing_engine(engine: Engine) -> Iterator[Engine]:
    """Close the connections of an engine after the block."""
    try:
        yield engine
    finally:
        engine.dispose()


def state_of(connection: HTTPConnection) -> State:
    """Return the state of the application that serves a request."""
    state: State = connection.app.state.service
    return state
