"""Whether the process lives, and whether it can serve."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from sqlalchemy import select

from api.dependencies import ReaderDep

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer as long as the process lives; needs no token."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(session: ReaderDep) -> JSONResponse:
    """Answer once the database does; needs no token."""
    session.execute(select(1))
    return JSONResponse({"status": "ready"})
