"""State that the requests of one API process share."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

import anyio.to_thread
from fastapi import FastAPI
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker
from starlette.requests import HTTPConnection

from api.clients.access import Ownerships
from api.clients.auth import Tokens
from api.clients.caps import Cap
from api.clients.limits import Buckets
from api.documents.caching import TableCache
from api.events import Hub
from api.load.capacity import (
    MAX_EXPORTS,
    capacity_of,
    max_connections,
    share_of_all,
    share_of_client,
)
from api.load.fair_semaphore import FairSemaphore
from api.load.readiness import Readiness
from api.load.transactions import Transactions
from api.metrics import Metrics
from api.settings import ApiSettings
from api.uploads.incoming import Incoming
from api.uploads.uploads import prepare_folders
from api.waiting_calls import WaitingCalls
from api.webhooks.deliveries import Deliveries
from records import database
from records.storage.connections import Limits
from tuner.context import open_context
from tuner.files.disk_floor import folders_of

#: Of requests, with as many connections as the capacity says: none waits for one.
REQUEST_LIMITS = Limits(
    max_overflow=0,
    wait_secs=10.0,
    statement_secs=30.0,
    lock_secs=15.0,
    idle_secs=60.0,
    transaction_secs=60.0,
)
#: Of exports, which read pages, and of imports, which are one transaction.
BULK_LIMITS = Limits(
    pool_size=MAX_EXPORTS + 1,
    max_overflow=0,
    statement_secs=60.0,
    lock_secs=30.0,
    idle_secs=60.0,
    transaction_secs=60.0,
)
PROBE_LIMITS = Limits(pool_size=1, max_overflow=0, wait_secs=2.0, statement_secs=3.0)


@dataclass
class State:
    """Settings, transactions, and caches between requests.

    The holder of ``importing`` is the only import of the process, and that of a slot of ``files``
    copies models.

    Sessions named ``bulk`` are for exports and imports, and have connections of their own.
    """

    settings: ApiSettings
    reads: Transactions
    lookups: Transactions
    writes: Transactions
    files: FairSemaphore
    bulk_sessions: sessionmaker[Session]
    bulk_readers: sessionmaker[Session]
    exports: Cap
    streams: Cap
    bodies: Cap
    incoming: Incoming
    importing: asyncio.Lock
    readiness: Readiness
    tokens: Tokens
    ownerships: Ownerships
    buckets: Buckets
    tables: TableCache
    waiting_calls: WaitingCalls
    hub: Hub
    metrics: Metrics


@asynccontextmanager
async def open_state(app: FastAPI, settings: ApiSettings) -> AsyncIterator[State]:
    """Open the database for as long as an application runs.

    Raises:
        RequestError: If the data directory cannot be written.
        RecordsError: If the database cannot be used.
    """
    capacity = capacity_of(settings.tuner.database)
    limits = replace(REQUEST_LIMITS, pool_size=capacity.n_connections)
    anyio.to_thread.current_default_thread_limiter().total_tokens = capacity.n_threads
    with (
        open_context(settings.tuner.database, settings.tuner.data_dir, limits=limits) as context,
        closing_engine(database.with_limits(context.engine, BULK_LIMITS)) as bulk,
    ):
        limit = max_connections(settings.max_connections)
        share = share_of_client(limit)
        probe = database.with_limits(context.engine, PROBE_LIMITS)
        readers = FairSemaphore(capacity.n_readers, share)
        reads = Transactions(readers, context.readers)
        writers = FairSemaphore(capacity.n_writers, share, writes=True)
        writes = Transactions(writers, context.sessions.begin)
        state = State(
            settings=settings,
            reads=reads,
            lookups=Transactions(readers, database.lookups(context.engine)),
            writes=writes,
            files=FairSemaphore(capacity.n_file_writers, share),
            bulk_sessions=database.sessions(bulk),
            bulk_readers=database.sessions(bulk, read_only=True),
            exports=Cap("exports", 1, MAX_EXPORTS, retry_after_secs=30),
            streams=Cap("open event streams and downloads", share, share_of_all(limit)),
            bodies=Cap("arriving bodies", share, share_of_all(limit)),
            incoming=Incoming(settings),
            importing=asyncio.Lock(),
            readiness=Readiness(
                probe.execution_options(sqlite_begin="BEGIN", postgresql_readonly=True)
            ),
            tokens=Tokens(reads, writes),
            ownerships=Ownerships(reads),
            buckets=Buckets(settings.rate),
            tables=TableCache(reads),
            waiting_calls=WaitingCalls(reads),
            hub=Hub(context.readers),
            metrics=Metrics(context.readers, folders_of(settings.tuner)),
        )
        temporary = tempfile.tempdir
        tempfile.tempdir = str(prepare_folders(settings.data_dir))
        app.state.service = state
        tasks = [asyncio.create_task(state.readiness.watch(), name="schema-watch")]
        if settings.webhooks is not None:
            deliveries = Deliveries(settings.webhooks, reads, writes)
            tasks.append(asyncio.create_task(deliveries.run(), name="webhooks"))
        try:
            yield state
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
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
