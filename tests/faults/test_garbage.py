"""Workers that answer what they should not: each costs its own trial alone, if it costs one."""

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import select

from records.models import MeasureRecord
from tests.faults.conftest import Hall

_ANY = ["none", "text", "number", "list", "unsendable", "unreceivable"]
_OF_SEARCH = ["odd_candidates", "unstorable_candidates"]
_OF_BUILD = ["odd_artifact", "no_artifact", "lost_artifact", "odd_error", "huge_error"]
_OF_RUN = [
    *("odd_samples", "no_durations", "complex", "odd_kind", "odd_text", "odd_max_error"),
    *("odd_conditions", "many_samples"),
]
_TRIALS = 48


def run(hall: Hall, trials: int = _TRIALS, **options: Any) -> Counter[str | None]:
    """Tune two jobs at once; returns how many trials had which error."""
    pair = [hall.job_of(name, trials, **options) for name in ("one", "two")]
    coordinator = hall.run(*pair)
    assert coordinator.failures == {}
    hall.check_whole(*pair, trials=trials)
    with hall.sessions() as session:
        found = session.execute(select(MeasureRecord.error_kind, MeasureRecord.error_text)).all()
    assert all(len(text) < 10_000 for _, text in found if text)
    return Counter(kind for kind, _ in found)


def test_search_that_answers_garbage_costs_no_trial(hall: Hall) -> None:
    """What the other islands found is measured; a round of no candidates is tried again."""
    hall.control.inject(propose=[{"fault": [*_ANY, *_OF_SEARCH], "one_in": 3}])

    assert set(run(hall)) <= {None, "run_error"}


@pytest.mark.parametrize(
    ("function", "faults", "kinds"),
    [
        ("build", [*_ANY, *_OF_BUILD], {"build_error", "run_error"}),
        ("run", [*_ANY, *_OF_RUN], {"run_error"}),
        ("build", ["huge", "hang"], {"build_error", "build_timeout", "run_error"}),
        ("run", ["huge", "hang"], {"run_error", "run_timeout"}),
    ],
)
def test_garbage_is_the_result_of_its_candidate_alone(
    hall: Hall, function: str, faults: list[str], kinds: set[str]
) -> None:
    """The trial is spent with an error that fits on a screen; nothing of it is a best record."""
    slow = "hang" in faults
    hall.control.inject(**{function: [{"fault": faults, "one_in": 7 if slow else 2}]})

    found = run(hall, 24 if slow else _TRIALS)

    assert found[None] > 0
    assert set(found) == {None, *kinds}


@pytest.mark.parametrize("fault", ["none", "hang"])
def test_final_that_answers_garbage_leaves_the_records_as_they_are(hall: Hall, fault: str) -> None:
    """The job is done; the winners are those that were measured."""
    hall.control.inject(run_interleaved=[{"fault": fault, "one_in": 2}])
    # A final may take as long as all its turns.
    run(hall, 8, trials_per_round=4, run_timeout=0.5)


def test_reference_that_is_not_there_is_computed_again(hall: Hall) -> None:
    """An answer is none without a file."""
    hall.control.inject(reference=[{"fault": "none", "once": True}])

    assert set(run(hall)) <= {None, "run_error"}


@pytest.mark.parametrize("fault", ["unreceivable", "kill"])
def test_training_that_fails_costs_no_trial(hall: Hall, fault: str) -> None:
    """The search goes on with the model it has."""
    hall.control.inject(train=[{"fault": fault}])

    run(hall, 24, cost_model="xgb-ranking")


@pytest.mark.parametrize("fault", ["none", "kill"])
def test_device_that_says_garbage_of_itself_is_asked_again(hall: Hall, fault: str) -> None:
    """It gets no round before it has said what it is; nobody else waits for it."""
    hall.control.inject(describe_target=[{"fault": fault, "once": True}])

    run(hall)
