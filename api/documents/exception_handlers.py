"""Answers to errors: a problem document for a program, a page for a person."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from api.errors import KINDS, PROBLEM, as_problem, expected, respond
from api.web import errors as pages


def answer(request: Request, error: Exception) -> Response:
    """Return the answer to an error."""
    problem = as_problem(error)
    request.scope[PROBLEM] = problem.slug
    if not pages.wants_page(request):
        return respond(problem)
    kind = KINDS[problem.slug]
    page = pages.render(
        request,
        problem.status_code,
        kind.title,
        str(problem.detail),
        problem.advice or kind.advice,
    )
    if wait := (problem.headers or {}).get("retry-after"):
        page.headers["retry-after"] = wait
    return page


def install(app: FastAPI) -> None:
    """Install handlers for expected errors; :mod:`api.middleware` answers all others."""

    async def handle(request: Request, error: Exception) -> Response:
        return answer(request, error)

    for kind in (*expected(), HTTPException, RequestValidationError, OSError):
        app.exception_handler(kind)(handle)
