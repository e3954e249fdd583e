"""Answers to errors: a problem document for a program, a page for a person."""

from typing import NamedTuple
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from api.errors import KINDS, PROBLEM, as_problem, expected, respond
from api.web.rendering import render as render_page

# Addresses for programs, which get problem documents whatever they accept.
_PROGRAM_PATHS = ("/api/", "/healthz", "/readyz", "/metrics")


class Message(NamedTuple):
    """The text of a problem, as a page shows it."""

    title: str
    detail: str
    advice: str = ""


def wants_page(request: Request) -> bool:
    """Return whether a request expects a page."""
    if request.url.path.startswith(_PROGRAM_PATHS):
        return False
    return "text/html" in request.headers.get("accept", "")


def render(request: Request, status: int, title: str, detail: str, advice: str) -> Response:
    """Return the page of a problem, or the redirection to the sign-in page."""
    if status == 401:
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        target = here if request.method == "GET" else "/"
        return RedirectResponse(f"/login?next={quote(target, safe='')}", 303)
    message = Message(title, detail, advice)
    return render_page(request, "error.html", status, message=message)


def message_of(error: Exception) -> tuple[int, Message]:
    """Return the status and the text of an error, to show beside a form."""
    problem = as_problem(error)
    return problem.status_code, Message(
        KINDS[problem.slug].title, str(problem.detail), problem.advice or ""
    )


def answer(request: Request, error: Exception) -> Response:
    """Return the answer to an error."""
    problem = as_problem(error)
    request.scope[PROBLEM] = problem.slug
    if not wants_page(request):
        return respond(problem)
    kind = KINDS[problem.slug]
    page = render(
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
