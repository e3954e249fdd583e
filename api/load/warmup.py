"""Preparations that the first requests would wait for, made before the process is ready."""

import gc

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from api.web.rendering import environment

_NOWHERE = "/api/v1/nowhere"


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
