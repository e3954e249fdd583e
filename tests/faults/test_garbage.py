"""Workers that return malformed results: each costs its own trial alone, if it costs one."""

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import func, select

from records.models import CostModel, MeasureRecord
from tests.engines.toy_network import bests_of
from tests.faults.conftest import Hall
from tuner.tuning.rounds.search import SearchSettings

_ANY = ["none", "text", "number", "list", "unsendable", "unreceivable"]
_OF_SEARCH = ["odd_candidates", "unstorable_candidates"]
_OF_BUILD = ["odd_artifact", "no_artifact", "lost_artifact", "odd_error", "huge_error"]
_OF_RUN = [
    *("odd_samples", "no_durations", "complex", "odd_kind", "odd_text", "odd_max_error"),
    *("odd_conditions", "many_samples"),
]
_TRIALS = 48
_TASKS = 6
# On a busy machine, a worker that is started again takes longer than a quick time-out.
_PATIENT: dict[str, Any] = {
    "search": SearchSettings(timeout_secs=60.0),
    "build_timeout": 60.0,
    "run_timeout": 60.0,
}


def run(hall: Hall, trials: int = _TRIALS, **options: Any) -> Counter[str | None]:
    """Tune two jobs at once and return the number of trials by error kind."""
    pair = [hall.job_of(name, trials, **_PATIENT | options) for name in ("one", "two")]
    coordinator = hall.run(*pair)
    assert coordinator.failures == {}
    hall.check_whole(*pair, trials=trials)
    with hall.sessions() as session:
        rows = session.execute(select(MeasureRecord.error_kind, MeasureRecord.error_text)).all()
    assert all(len(text) < 10_000 for _, text in rows if text)
    return Counter(kind for kind, _ in rows)


def test_malformed_search_results_cost_no_trial(hall: Hall) -> None:
    """Candidates of the other islands are measured; a round without candidates is repeated."""
    hall.control.inject(propose=[{"fault": [*_ANY, *_OF_SEARCH], "one_in": 3}])

    kinds = run(hall)

    assert hall.control.strikes("propose") > 0
    # The toy engine itself makes some programs fail.
    assert set(kinds) == {None, "run_error"}


@pytest.mark.parametrize(
    ("function", "faults", "kinds"),
    [
        ("build", [*_ANY, *_OF_BUILD], {"build_error", "run_error"}),
        ("run", [*_ANY, *_OF_RUN], {"run_error"}),
        pytest.param(
            "build",
            ["huge", "hang"],
            {"build_error", "build_timeout", "run_error"},
            marks=pytest.mark.slow("waits for time-outs"),
        ),
        pytest.param(
            "run",
            ["huge", "hang"],
            {"run_error", "run_timeout"},
            marks=pytest.mark.slow("waits for time-outs"),
        ),
    ],
)
def test_malformed_result_is_the_error_of_its_candidate_alone(
    hall: Hall, function: str, faults: list[str], kinds: set[str]
) -> None:
    """The trial is spent with an error that fits on a screen, and is not a best record."""
    slow = "hang" in faults
    hall.control.inject(**{function: [{"fault": faults, "one_in": 7 if slow else 2}]})

    hasty = {"build_timeout": 2.0, "run_timeout": 2.0} if slow else {}
    counts = run(hall, 24 if slow else _TRIALS, **hasty)

    assert counts[None] > 0
    assert set(counts) == {None, *kinds}
    n_failed = counts.total() - counts[None]
    assert n_failed >= hall.control.strikes(function) > 0


@pytest.mark.parametrize("fault", ["none", "hang"])
def test_malformed_final_leaves_the_best_record_of_its_task(hall: Hall, fault: str) -> None:
    """The job is done; the task whose final failed keeps its best record, unconfirmed."""
    hall.control.inject(run_interleaved=[{"fault": fault, "containing": "one_0"}])
    # A final may take as long as all its turns.
    run(hall, 12, trials_per_round=4, run_timeout=0.5)

    confirmed = [is_confirmed for *_, is_confirmed in bests_of(hall.sessions)]
    assert sorted(confirmed) == [False] + [True] * (_TASKS - 1)


def test_reference_that_is_no_file_is_computed_again(hall: Hall) -> None:
    """The first call for each reference returns none, and no candidate fails because of it."""
    hall.control.inject(reference=[{"fault": "none", "once": True}])

    kinds = run(hall)

    assert hall.control.strikes("reference") == 2 * _TASKS
    assert set(kinds) == {None, "run_error"}
    with hall.sessions() as session:
        failed = MeasureRecord.error_kind == "run_error"
        texts = set(session.scalars(select(MeasureRecord.error_text).where(failed)))
    assert texts == {"the toy broke"}


@pytest.mark.parametrize("fault", ["unreceivable", "kill"])
def test_failed_training_costs_no_trial(hall: Hall, fault: str) -> None:
    """The search continues with the untrained model, and no model is stored."""
    hall.control.inject(train=[{"fault": fault}])

    run(hall, 24, cost_model="xgb-ranking")

    assert hall.control.strikes("train") > 0
    with hall.sessions() as session:
        assert session.scalar(select(func.count()).select_from(CostModel)) == 0


@pytest.mark.parametrize("fault", ["none", "kill"])
def test_device_with_a_malformed_description_is_queried_again(hall: Hall, fault: str) -> None:
    """It gets no round before it has described itself; the other device does not wait for it."""
    hall.control.inject(describe_target=[{"fault": fault, "once": True}])

    run(hall)

    assert hall.control.strikes("describe_target") == 1
