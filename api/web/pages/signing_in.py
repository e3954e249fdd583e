"""Sign-in and sign-out with a token, and the choice of a theme."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from api.clients.auth import COOKIE, SUBJECT, address_of
from api.dependencies import StateDep
from api.web.forms.sent import local_path
from api.web.rendering import THEME_COOKIE, THEMES, render
from records.service.owners import audit

router = APIRouter(include_in_schema=False)

_YEAR_SECS = 365 * 24 * 3600
_MAX_TOKEN_CHARS = 200


@router.get("/login")
def read_login(request: Request, next: str = "/") -> Response:  # noqa: A002  the parameter of the address
    """Show the sign-in form."""
    return render(request, "login.html", next=local_path(next), error="")


@router.post("/login")
async def sign_in(
    request: Request,
    state: StateDep,
    token: Annotated[str, Form()] = "",
    next: Annotated[str, Form()] = "/",  # noqa: A002  the field of the form
) -> Response:
    """Store a valid token in a cookie that scripts cannot read and other sites cannot send."""
    secret = token.strip()
    is_possible = secret.isascii() and 0 < len(secret) <= _MAX_TOKEN_CHARS
    valid = await state.tokens.find(secret) if is_possible else None
    if valid is None:
        error = "The token is unknown, expired or revoked."
        return render(request, "login.html", 401, next=local_path(next), error=error)
    request.scope[SUBJECT] = valid.name
    await state.writes.run(audit.log_action, valid.name, address_of(request), "sign-in")
    answer = RedirectResponse(local_path(next), 303)
    answer.set_cookie(
        COOKIE,
        secret,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )
    return answer


@router.post("/logout")
async def sign_out() -> Response:
    """Delete the cookie."""
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict", path="/")
    return answer


@router.post("/theme")
async def choose_theme(
    theme: Annotated[str, Form()] = THEMES[0],
    next: Annotated[str, Form()] = "/",  # noqa: A002  the field of the form
) -> Response:
    """Store a theme, for browsers without scripts."""
    answer = RedirectResponse(local_path(next), 303)
    chosen = theme if theme in THEMES else THEMES[0]
    answer.set_cookie(THEME_COOKIE, chosen, max_age=_YEAR_SECS, samesite="lax", path="/")
    return answer
