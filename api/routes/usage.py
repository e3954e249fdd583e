"""The token of a request, and its use of quotas."""

from dataclasses import asdict

from fastapi import APIRouter

from api.dependencies import ReaderDep, Reading, SettingsDep
from api.routes import PREFIX
from records.service import quotas
from tuner.jobs.spec import MAX_PRIORITY
from tuner.schemas import QuotaUse, TokenInfo

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
