"""Problems as pages for people; programs get the documents of :mod:`api.errors`."""

from typing import NamedTuple
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from api.errors import KINDS, as_problem
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
