"""Arbitrary text of models and compilers can be stored."""

import pytest
from sqlalchemy.orm import Session

from records import jobs, networks
from records.service import builds
from records.tuning import events
from tests.records import make

ARBITRARY = "dimension 'N\x00' is \ud800 wide"
STORED = "dimension 'N\ufffd' is ? wide"


def test_a_message_may_hold_anything(session: Session) -> None:
    """NUL and lone surrogates are replaced; setting the same message again adds no event."""
    job_id = make.job(session)
    build = builds.request_build(session, job_id)

    jobs.set_state(session, job_id, "failed", ARBITRARY)
    jobs.set_state(session, job_id, "failed", ARBITRARY)
    builds.set_build(session, build.id, "failed", message=ARBITRARY)

    assert jobs.get_job(session, job_id).message == STORED
    assert builds.get_build(session, build.id).message == STORED
    messages = [event.data["message"] for event in events.events_after(session, job_id, 0)]
    assert messages == [None, STORED, STORED]


@pytest.mark.parametrize("name", ["a\x00b", "a\ud800b"])
def test_a_name_may_hold_anything(session: Session, name: str) -> None:
    """Names of networks and workloads are cleaned."""
    network = networks.ensure_network(session, "n", name, {})
    session.refresh(network)

    assert network.name in ("a\ufffdb", "a?b")


def test_data_of_an_event_may_hold_anything(session: Session) -> None:
    """Event data is cleaned at any depth."""
    job_id = make.job(session)
    events.add_event(session, job_id, "pick", {"reason": [ARBITRARY]})

    assert events.events_after(session, job_id, 0)[0].data == {"reason": [STORED]}
