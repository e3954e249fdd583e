"""Tags and notes of jobs."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from records import labels
from records.models import Job
from records.tuning import events
from tests.api import make


def test_tags_find_the_jobs_that_have_all_of_them(session: Session) -> None:
    """A tag is a whole word, and one job has it once."""
    first, second = make.job(session, "a").id, make.job(session, "b").id
    labels.edit(session, first, tags=["release", "night", "night"])
    labels.edit(session, second, tags=["night"])

    def jobs_with(*tags: str) -> list[int]:
        return list(session.scalars(select(Job.id).where(labels.has_tags(tags)).order_by(Job.id)))

    assert labels.tags_of(session, [first, second]) == {
        first: ["night", "release"],
        second: ["night"],
    }
    assert jobs_with("night") == [first, second]
    assert jobs_with("night", "release") == [first]
    assert jobs_with("nigh") == []
    assert jobs_with() == [first, second]


def test_what_is_not_given_stays(session: Session) -> None:
    """Empty tags and an empty note are removed; a change is an event, so that pages show it."""
    job = make.job(session)
    labels.edit(session, job.id, tags=["night"], note="before\nthe driver")
    labels.edit(session, job.id, note="")
    only_tags = (labels.tags_of(session, [job.id])[job.id], job.note)
    labels.edit(session, job.id, tags=[])
    labels.edit(session, job.id)

    assert only_tags == (["night"], None)
    assert labels.tags_of(session, [job.id]) == {job.id: []}
    kinds = [event.kind for event in events.events_after(session, job.id, 0)]
    assert kinds == ["state", "labels", "labels", "labels"]
