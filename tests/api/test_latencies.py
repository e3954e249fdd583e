"""Every list and page shows one latency for a job: the weighted sum of its best records."""

import re

import pytest
from sqlalchemy import delete

from records import bests, jobs, measure_records, tasks
from records.models import JobFailure, MeasureRecord, Pick
from records.tuning import events
from tests.api import make
from tests.api.conftest import Served, on_each_database
from tests.records import make as rows
from tuner.queries.history import read_history

_BROWSER = {"accept": "text/html"}
# The second task has weight 2 and was first measured with 12.0 ms, then confirmed with 16.5 ms.
_FIRST_SECS, _MEASURED_SECS, _CONFIRMED_SECS = 0.0137, 0.012, 0.0165
_TOTAL_SECS = _FIRST_SECS + 2 * _CONFIRMED_SECS


@pytest.fixture
def confirmed_job(served: Served) -> int:
    """A job whose coordinator stored its status before the finals confirmed a winner."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session, n_trials=1)
        first, second = tasks.tasks_of_job(session, jobs.get_job(session, job_id))
        measure_records.add_record(session, rows.timed(first.task_id, "first", _FIRST_SECS))
        winner = measure_records.add_record(
            session, rows.timed(second.task_id, "second", _MEASURED_SECS)
        )
        assert winner is not None
        events.set_status(
            session,
            job_id,
            phase="confirming the winners",
            spent_trials=4,
        )
        bests.confirm(session, winner.id, [_CONFIRMED_SECS])
        bests.choose_confirmed(session, second.task_id)
        jobs.set_state(session, job_id, "done")
    return job_id


@on_each_database
def test_every_view_shows_the_latency_of_the_current_best_records(
    served: Served, confirmed_job: int
) -> None:
    """REST and dashboard, list and page, agree, and the finals count."""
    at = f"/api/v1/jobs/{confirmed_job}"

    (listed,) = served.client.get("/api/v1/jobs").json()["items"]
    job = served.client.get(at).json()["job"]
    table = served.client.get(f"{at}/tasks").json()
    text = served.client.get(f"{at}/tasks", params={"format": "text"}).text
    list_page = served.client.get("/", headers=_BROWSER).text
    job_page = served.client.get(f"/jobs/{confirmed_job}", headers=_BROWSER).text

    assert listed["total_latency_secs"] == pytest.approx(_TOTAL_SECS)
    assert job["total_latency_secs"] == listed["total_latency_secs"]
    assert table["job"]["total_latency_secs"] == listed["total_latency_secs"]
    assert listed["total_latency_secs"] == pytest.approx(
        sum(task["weight"] * task["latency_secs"] for task in table["tasks"])
    )
    assert "latency    46.7000 ms estimated in total" in text
    assert re.findall(r'data-label="Latency \(ms\)">([\d.]+)<', list_page) == ["46.7000"]
    assert re.findall(r'latency</dt><dd class="big">([\d.]+) ', job_page) == ["46.7000"]


def test_a_history_ends_with_the_latency_of_the_lists(served: Served, confirmed_job: int) -> None:
    """The last round was before the finals; the chart goes on to what lists show."""
    points = served.client.get(f"/api/v1/jobs/{confirmed_job}/history").json()["points"]

    with served.sessions() as session:
        rounds = read_history(session, confirmed_job, to_now=False).points

    assert points[-1]["total_latency_secs"] == pytest.approx(_TOTAL_SECS)
    # Comparisons look at rounds: best records belong to all jobs of a target.
    assert [point["total_latency_secs"] for point in points[:-1]] == [
        point.total_latency_secs for point in rounds
    ]
    assert points[-2]["total_latency_secs"] != points[-1]["total_latency_secs"]


@pytest.mark.parametrize(
    ("origins", "untuned_secs"),
    [(("rules:tiled", "variants:w"), 7.0), (("rules:tiled", "random"), None)],
)
def test_the_latency_without_tuning_is_that_of_first_trials(
    served: Served, origins: tuple[str, str], untuned_secs: float | None
) -> None:
    """It is known where the first candidate of every task was the schedule of untuned libraries."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session, n_trials=1)
        # The only trial of the first task so far failed.
        session.execute(delete(JobFailure))
        session.execute(delete(MeasureRecord))
        session.execute(delete(Pick))
        weighted = tasks.tasks_of_job(session, jobs.get_job(session, job_id))
        for task, origin, secs in zip(weighted, origins, (1.0, 3.0), strict=True):
            for number in range(2):
                pick = rows.pick(session, job_id, task.task_id, 1, {"reason": "warm-up"})
                trial = rows.timed(
                    task.task_id, f"t{number}", secs / (number + 1), origin=origin, pick_id=pick.id
                )
                measure_records.add_record(session, trial)

    job = served.client.get(f"/api/v1/jobs/{job_id}").json()

    assert job["untuned_latency_secs"] == untuned_secs
    assert job["job"]["total_latency_secs"] == 3.5


def test_a_job_has_no_latency_while_a_task_has_no_best_record(served: Served) -> None:
    """A sum over some of the tasks would be too small."""
    with served.sessions.begin() as session:
        job_id = make.tuned(session)
        events.set_status(session, job_id, phase="measuring", spent_trials=4)

    (listed,) = served.client.get("/api/v1/jobs").json()["items"]
    job = served.client.get(f"/api/v1/jobs/{job_id}").json()["job"]

    assert listed["total_latency_secs"] is None
    assert job["total_latency_secs"] is None
