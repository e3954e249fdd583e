"""The token of a request, its use of quotas, and the secret of its webhooks."""

from dataclasses import asdict

from fastapi import APIRouter

from api.dependencies import ReaderDep, Reading, SettingsDep, Submitting
from api.documents.openapi import problems
from api.errors import Problem
from api.routes import PREFIX
from api.webhooks.settings import secret_text
from records.service.owners import quotas
from tuner.jobs.spec import MAX_PRIORITY
from tuner.schemas import QuotaUse, TokenInfo, WebhookSecret

router = APIRouter(prefix=PREFIX, tags=["catalogue"])


@router.get("/usage", response_model=TokenInfo)
def read_usage(subject: Reading, session: ReaderDep, settings: SettingsDep) -> TokenInfo:
    """Serve the name, scopes and project of your token, and its quotas; admins have none."""
    is_admin = subject.viewer.is_admin
    used = {} if is_admin else asdict(quotas.usage(session, subject.name))
    limits = asdict(quotas.of_owner(session, subject.name, settings.quotas))
    return TokenInfo(
        name=subject.name,
        scopes=list(subject.scopes),
        project=subject.project,
        max_priority=MAX_PRIORITY if is_admin else settings.max_priority,
        quotas=[QuotaUse(quota=name, used=n, limit=limits[name]) for name, n in used.items()],
    )


@router.get("/usage/webhook-secret", response_model=WebhookSecret, responses=problems(404))
def read_webhook_secret(subject: Submitting, settings: SettingsDep) -> WebhookSecret:
    """Serve the secret that signs the webhooks of the jobs of your token."""
    if settings.webhooks is None:
        raise Problem(
            "not-found",
            "this service sends no webhooks",
            advice="Its operator sets TUNER_WEBHOOK_SECRET.",
        )
    return WebhookSecret(secret=secret_text(settings.webhooks.key_of(subject.owner)))
