"""State that the requests of one API process share."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from sqlalchemy.orm import Session, sessionmaker
from starlette.requests import HTTPConnection

from api.auth import Tokens
from api.events import Hub
from api.limits import Buckets
from api.metrics import Metrics
from api.ownerships import Ownerships
from api.response_cache import TableCache
from api.settings import ApiSettings
from api.uploads import prepare_folders
from records import database
from tuner.context import open_context


@dataclass
class State:
    """Settings, sessions, and caches between requests."""

    settings: ApiSettings
    sessions: sessionmaker[Session]
    readers: sessionmaker[Session]
    lookups: sessionmaker[Session]
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
    with open_context(settings.tuner.database, settings.tuner.data_dir) as context:
        state = State(
            settings=settings,
            sessions=context.sessions,
            readers=context.readers,
            lookups=database.lookups(context.engine),
            tokens=Tokens(context.sessions, context.readers),
            ownerships=Ownerships(context.readers),
            buckets=Buckets(settings.rate),
            tables=TableCache(context.readers),
            hub=Hub(context.readers),
            metrics=Metrics(context.readers),
        )
        temporary = tempfile.tempdir
        tempfile.tempdir = str(prepare_folders(settings.data_dir))
        app.state.service = state
        try:
            yield state
        finally:
            await state.hub.close()
            tempfile.tempdir = temporary


def state_of(connection: HTTPConnection) -> State:
    """Return the state of the application that serves a request."""
    state: State = connection.app.state.service
    return state
