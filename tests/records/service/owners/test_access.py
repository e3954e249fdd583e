"""Owners and administrators change jobs, projects see them, and all others do not know of them."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from records import jobs, libraries
from records.errors import NoSuchRow
from records.models import Job
from records.service import builds, catalogue, submissions
from records.service.owners import access
from records.service.owners.access import Ownership, Viewer
from tests.records import make
from tests.records.service.test_submissions import submission_of

ADA, BOB, EVE = Viewer("ada", "vision"), Viewer("bob", "vision"), Viewer("eve")
ROOT = Viewer("root", is_admin=True)
OWNERSHIPS = {
    "ada's": Ownership("ada", "vision"),
    "eve's": Ownership("eve", None),
    "of another project": Ownership("dan", "audio"),
    "without an owner": Ownership(None, None),
}


@pytest.mark.parametrize(
    ("viewer", "seen", "changed"),
    [
        (ADA, ["ada's"], ["ada's"]),
        (BOB, ["ada's"], []),  # of the same project
        (EVE, ["eve's"], ["eve's"]),  # no project is not a project
        (Viewer(""), [], []),
        (ROOT, list(OWNERSHIPS), list(OWNERSHIPS)),
        (access.EVERYTHING, list(OWNERSHIPS), list(OWNERSHIPS)),
    ],
)
def test_who_may_do_what(
    session: Session, viewer: Viewer, seen: list[str], changed: list[str]
) -> None:
    """The rule for one job and the condition of a query agree."""
    for name, (owner, project) in OWNERSHIPS.items():
        submissions.submit(session, submission_of(name, name=name, owner=owner, project=project))

    assert [name for name, job in OWNERSHIPS.items() if viewer.sees(job)] == seen
    assert [name for name, job in OWNERSHIPS.items() if viewer.changes(job)] == changed
    visible = select(Job.name).where(access.visible_jobs(viewer)).order_by(Job.id)
    assert list(session.scalars(visible)) == seen
    assert sum(jobs.count_by_state(session, viewer).values()) == len(seen)


def test_an_invisible_job_does_not_exist(session: Session) -> None:
    """A client gets the same answer for a job of others as for one that never was."""
    job, _ = submissions.submit(session, submission_of("a", owner="ada"))

    assert access.ownership(session, job.id) == ("ada", None)
    access.check_visible(session, ADA, job.id)
    with pytest.raises(NoSuchRow, match=f"no job {job.id}"):
        access.check_visible(session, EVE, job.id)
    with pytest.raises(NoSuchRow, match="no job 99"):
        access.check_visible(session, ROOT, 99)


def test_networks_and_libraries_follow_their_jobs(session: Session) -> None:
    """A client lists the networks and libraries of its jobs; those of a deleted job are gone."""
    network_id, target_id = make.network(session), make.target(session)
    job, _ = submissions.submit(session, submission_of("a", owner="ada"))
    submissions.assign(session, job.id, network_id, target_id, {})
    new = libraries.NewLibrary(key="k", target_id=target_id, manifest={}, path="p")
    libraries.ensure_library(session, new)
    build = builds.request_build(session, job.id)
    builds.set_build(session, build.id, "done", library_key="k")

    for viewer, expected in ((ADA, 1), (EVE, 0), (ROOT, 1)):
        assert len(catalogue.list_networks(session, None, 9, viewer)) == expected
        assert len(libraries.list_libraries(session, viewer=viewer)) == expected
    assert catalogue.targets_of(session, network_id, ADA) == []
    with pytest.raises(NoSuchRow, match="no network"):
        catalogue.targets_of(session, network_id, EVE)

    job.hidden = True
    session.flush()
    assert libraries.list_libraries(session, viewer=ADA) == []


def test_equal_requests_of_two_owners_are_two_jobs() -> None:
    """The identity of a request contains its owner; without tokens it is as it was."""
    names = {submissions.owned("hash", owner) for owner in (None, "ada", "bob")}

    assert len(names) == 3
    assert "hash" in names
