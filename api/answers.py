"""How a problem is answered: as a document for a program, as a page for a person."""

from importlib import import_module
from importlib.util import find_spec

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from api.errors import KINDS, as_problem, expected, respond


def answer(request: Request, error: Exception) -> Response:
    """Return the answer that an error is."""
    problem = as_problem(error)
    if find_spec("api.web.errors") is not None:
        pages = import_module("api.web.errors")
        if pages.wants_page(request):
            kind = KINDS[problem.slug]
            page: Response = pages.render(
                request,
                problem.status_code,
                kind.title,
                str(problem.detail),
                problem.advice or kind.advice,
            )
            return page
    return respond(problem)


def install(app: FastAPI) -> None:
    """Have an application answer so; :mod:`api.middleware` does for errors that nobody expected."""

    async def handle(request: Request, error: Exception) -> Response:
        return answer(request, error)

    for kind in (*expected(), HTTPException, RequestValidationError, OSError):
        app.exception_handler(kind)(handle)
