"""Problems as pages, for people; programs get problem documents, see :mod:`api.errors`."""

from typing import NamedTuple
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from api.errors import KINDS, as_problem
from api.web.rendering import render as render_page

# What programs ask for: they get problem documents whatever they accept.
_PROGRAMS = ("/api/", "/healthz", "/readyz", "/metrics")


class Said(NamedTuple):
    """What went wrong with a form, shown beside it."""

    title: str
    detail: str
    advice: str = ""


def wants_page(request: Request) -> bool:
    """Return whether a problem is to be shown to a person."""
    if request.url.path.startswith(_PROGRAMS):
        return False
    return "text/html" in request.headers.get("accept", "")


def render(request: Request, status: int, title: str, detail: str, advice: str) -> Response:
    """Return the page of a problem; who has to sign in is sent to where that is done."""
    if status == 401:
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        wanted = here if request.method == "GET" else "/"
        return RedirectResponse(f"/login?next={quote(wanted, safe='')}", 303)
    said = Said(title, detail, advice)
    return render_page(request, "error.html", status, said=said)


def said_of(error: Exception) -> tuple[int, Said]:
    """Return the status of an error, and what is said of it beside a form."""
    problem = as_problem(error)
    return problem.status_code, Said(
        KINDS[problem.slug].title, str(problem.detail), problem.advice or ""
    )
