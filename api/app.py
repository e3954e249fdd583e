"""The application: routes, error handlers and middlewares."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version

from fastapi import APIRouter, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute

from api import middleware
from api.app_state import open_state
from api.documents import openapi
from api.routes import (
    PREFIX,
    catalogue,
    events,
    health,
    jobs,
    libraries,
    packs,
    profiles,
    records,
    remote,
    tasks,
    tune,
    usage,
)
from api.settings import ApiSettings
from api.web import errors, pages
from api.web.rendering import environment

_ROUTES = (tune, jobs, tasks, events, libraries, profiles, records, catalogue, usage, remote, packs)
_NOWHERE = "/api/v1/nowhere"


def create_app(settings: ApiSettings) -> FastAPI:
    """Return the application, which opens its database on start-up and closes it on shutdown."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_state(app, settings):
            await warm_up(app)
            yield

    app = FastAPI(
        title="Subgraph Tuner",
        version=version("subgraph-tuner"),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # A redirect would name the host that the client sent.
        redirect_slashes=False,
        lifespan=lifespan,
        generate_unique_id_function=openapi.operation_id,
    )
    errors.install(app)
    openapi.install(app, f"{PREFIX}/openapi.json")
    middleware.install(app)
    app.router.routes.extend(_included_routes())
    return app


@cache
def _included_routes() -> list[BaseRoute]:
    """Return the routes of all modules; applications of a process share the models of each."""
    router = APIRouter(generate_unique_id_function=openapi.operation_id)
    router.include_router(health.router)
    for routes in _ROUTES:
        router.include_router(routes.router, responses=openapi.problems(*openapi.COMMON))
    router.include_router(pages.router)
    return router.routes


async def warm_up(app: FastAPI) -> None:
    """Build the routes, compile the templates and start a thread, in a fraction of a second."""
    scope = {"type": "http", "method": "GET", "path": _NOWHERE, "root_path": "", "headers": []}
    for route in app.routes:
        # The models of included routes are built at the first comparison with a path.
        route.matches(dict(scope))
    await run_in_threadpool(_compile_templates)
    # These objects stay, so the collector need not visit them while a request waits.
    gc.collect()
    gc.freeze()


def _compile_templates() -> None:
    templates = environment()
    for name in templates.list_templates(extensions=["html"]):
        templates.get_template(name)
