"""What the first requests would wait for, done before the process says that it is ready."""

import gc

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from api.web.rendering import environment

_NOWHERE = "/api/v1/nowhere"


async def warm_up(app: FastAPI) -> None:
    """Build the routes, compile the templates and start a thread; takes part of a second."""
    scope = {"type": "http", "method": "GET", "path": _NOWHERE, "root_path": "", "headers": []}
    for route in app.routes:
        # The models of included routes are built when they are first compared with a path.
        route.matches(dict(scope))
    await run_in_threadpool(_compile_templates)
    # What is there now stays: the collector need not walk it while a request waits.
    gc.collect()
    gc.freeze()


def _compile_templates() -> None:
    templates = environment()
    for name in templates.list_templates(extensions=["html"]):
        templates.get_template(name)
