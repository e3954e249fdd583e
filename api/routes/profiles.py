"""Profiles of the libraries of jobs: made by a worker after a build, or uploaded."""

from fastapi import APIRouter

from api.dependencies import ChangingJob, ReaderDep, ReadingJob, StateDep, WriterDep
from api.documents.openapi import problems
from api.documents.schemas import Id
from api.routes import PREFIX
from records import jobs
from records.errors import NoSuchRow
from records.service.owners import audit
from tuner.profiling.results import LibraryProfile, StoredProfile
from tuner.queries import profiles

router = APIRouter(prefix=PREFIX, tags=["libraries"])


@router.get("/jobs/{job_id}/profile", response_model=StoredProfile, responses=problems(404))
def read_profile(job_id: Id, _subject: ReadingJob, session: ReaderDep) -> StoredProfile:
    """Serve the last profile of a job's library."""
    stored = profiles.read_profile(session, job_id)
    if stored is None:
        raise NoSuchRow(f"job {job_id} has no profile; request a build with one")
    return stored


@router.put("/jobs/{job_id}/profile", response_model=StoredProfile, responses=problems(404))
def store_profile(
    job_id: Id, body: LibraryProfile, subject: ChangingJob, session: WriterDep, state: StateDep
) -> StoredProfile:
    """Store a profile of a job's library; its roofs and verdicts are those of this database."""
    stored = profiles.store_profile(session, jobs.get_job(session, job_id), body)
    audit.log_action(session, subject.name, subject.address, "profile", job_id)
    state.tables.forget(job_id)
    return stored
