"""What a model or a compiler says is stored, whatever it holds."""

import pytest
from sqlalchemy.orm import Session

from records import builds, events, jobs, networks
from tests.records import make

SAID = "dimension 'N\x00' is \ud800 wide"
STORED = "dimension 'N\ufffd' is ? wide"


def test_a_message_may_hold_anything(session: Session) -> None:
    """NUL and lone surrogates fail neither a job nor a build; the same again is no news."""
    job_id = make.job(session)
    build = builds.request_build(session, job_id)

    jobs.set_state(session, job_id, "failed", SAID)
    jobs.set_state(session, job_id, "failed", SAID)
    builds.set_build(session, build.id, "failed", message=SAID)

    assert jobs.get_job(session, job_id).message == STORED
    assert builds.get_build(session, build.id).message == STORED
    told = [event.data["message"] for event in events.events_after(session, job_id, 0)]
    assert told == [None, STORED, STORED]


@pytest.mark.parametrize("name", ["a\x00b", "a\ud800b"])
def test_a_name_may_hold_anything(session: Session, name: str) -> None:
    """Of a network and of a workload."""
    network = networks.ensure_network(session, "n", name, {})
    session.refresh(network)

    assert network.name in ("a\ufffdb", "a?b")


def test_data_of_an_event_may_hold_anything(session: Session) -> None:
    """At any depth."""
    job_id = make.job(session)
    events.add_event(session, job_id, "pick", {"reason": [SAID]})

    assert events.events_after(session, job_id, 0)[0].data == {"reason": [STORED]}
