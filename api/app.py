"""The application: routes, errors and what is around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

from fastapi import FastAPI
from fastapi.routing import APIRoute

from api import errors
from api.routes import health
from api.settings import ApiSettings
from api.state import open_state

PREFIX = "/api/v1"


def create_app(settings: ApiSettings) -> FastAPI:
    """Return the application; it opens its database when it starts, and closes it when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_state(app, settings):
            yield

    app = FastAPI(
        title="Subgraph Tuner",
        version=version("subgraph-tuner"),
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        generate_unique_id_function=_operation_id,
    )
    errors.install(app)
    app.include_router(health.router)
    if find_spec("api.web.pages") is not None:
        app.include_router(import_module("api.web.pages").router)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name
