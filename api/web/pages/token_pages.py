"""The page of API tokens, for administrators."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from api.clients.auth import Subject
from api.dependencies import ReaderDep, StateDep
from api.documents.schemas import Id
from api.web import access
from api.web.errors import Message
from api.web.forms import sent as web_forms
from api.web.rendering import render
from records.errors import NoSuchRow
from records.models import now
from records.service.owners import audit, tokens
from records.service.owners.quotas import parse
from records.service.service_models import ApiToken

router = APIRouter(include_in_schema=False)

Text = Annotated[str, Form(max_length=500)]


@dataclass(frozen=True)
class Secret:
    """The secret of a token, which is shown once."""

    name: str
    text: str


@router.get("/tokens")
def read_tokens(request: Request, _subject: access.Admin, session: ReaderDep) -> HTMLResponse:
    """Show all tokens without their secrets."""
    return _page(session, request)


@router.post("/tokens")
async def create_token(  # noqa: PLR0913, PLR0917  a parameter for each field of the form
    request: Request,
    state: StateDep,
    subject: access.Admin,
    name: Text = "",
    scope: Text = "read",
    days: Text = "",
    project: Text = "",
    quotas: Text = "",
) -> HTMLResponse:
    """Create a token and show its secret once, or show the form again with its error."""
    sent = {"name": name, "scope": scope, "days": days, "project": project, "quotas": quotas}

    def create(session: Session) -> tuple[ApiToken, str]:
        return tokens.create_token(
            session,
            name.strip(),
            [scope],
            tokens.lifetime_of(days) if days.strip() else None,
            project=project.strip() or None,
            quotas=parse(quotas),
        )

    try:
        secret = await state.writes.run(_changed, subject, "token-create", create)
    except ValueError as error:
        message = Message("The token was not created", str(error))
        return await state.reads.run(_page, request, message, sent)
    return await state.reads.run(_page, request, None, None, secret)


@router.post("/tokens/{token_id}/renew")
async def renew_token(
    request: Request, state: StateDep, subject: access.Admin, token_id: Id
) -> HTMLResponse:
    """Give a token a new secret with the lifetime that it had, and show it once."""

    def renew(session: Session) -> tuple[ApiToken, str]:
        token = _token(session, token_id)
        lifetime = None if token.expires is None else token.expires - token.created
        return tokens.renew_token(session, token.name, lifetime)

    secret = await state.writes.run(_changed, subject, "token-renew", renew)
    return await state.reads.run(_page, request, None, None, secret)


@router.post("/tokens/{token_id}/revoke")
async def revoke_token(
    request: Request, state: StateDep, subject: access.Admin, token_id: Id
) -> HTMLResponse:
    """Revoke a token."""

    def revoke(session: Session) -> tuple[ApiToken, str]:
        return tokens.revoke_token(session, _token(session, token_id).name), ""

    await state.writes.run(_changed, subject, "token-revoke", revoke)
    return await state.reads.run(_page, request)


def _token(session: Session, token_id: int) -> ApiToken:
    token = session.get(ApiToken, token_id)
    if token is None:
        raise NoSuchRow(f"no token {token_id}")
    return token


def _changed(
    session: Session,
    subject: Subject,
    action: str,
    change: Callable[[Session], tuple[ApiToken, str]],
) -> Secret:
    """Change a token and log it; return the token's secret."""
    token, secret = change(session)
    detail = tokens.described(token)
    audit.log_action(session, subject.name, subject.address, action, detail=detail)
    return Secret(token.name, secret)


def _page(
    session: Session,
    request: Request,
    error: Message | None = None,
    sent: Mapping[str, str] | None = None,
    secret: Secret | None = None,
) -> HTMLResponse:
    return render(
        request,
        "tokens.html",
        200 if error is None else 422,
        tokens=tokens.list_tokens(session),
        scopes=tokens.ALL_SCOPES,
        form=web_forms.Form({name: [text] for name, text in (sent or {}).items()}),
        error=error,
        secret=secret,
        now=now(),
    )
