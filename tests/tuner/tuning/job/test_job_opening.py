"""Jobs whose latencies do not compare."""

from typing import Any

import pytest

from records.service import submissions
from tests.engines.toy_network import Workshop
from tests.records.service.test_submissions import submission_of
from tuner.errors import RequestError
from tuner.jobs.comparability import Incomparable, compared_settings


@pytest.mark.parametrize("odd", [{"number": 2}, {"cache_flush": False}])
def test_only_trials_decide_how_a_target_is_timed(workshop: Workshop, odd: dict[str, Any]) -> None:
    """A job without a trial decides nothing; after a trial, other settings are refused."""
    prepared = workshop.prepare()
    workshop.session(prepared, 4, **odd)

    workshop.tune(prepared, 4, seed=1)

    with pytest.raises(Incomparable, match="with which the records") as refused:
        workshop.session(prepared, 4, seed=2, **odd)
    assert refused.value.field == next(iter(odd))
    assert refused.value.timed_with == compared_settings({})
    workshop.session(prepared, 4, seed=3)


def test_a_command_line_times_like_the_service_of_its_database(workshop: Workshop) -> None:
    """Its records would otherwise not be those that jobs of the service can use."""
    with workshop.sessions.begin() as session:
        submissions.submit(session, submission_of())

    with pytest.raises(RequestError, match="must be 1 on a service"):
        workshop.session(workshop.prepare(), 4, number=2)
