"""Objectives of jobs, over one network and over several."""

from typing import Any

import numpy as np
import pytest

from tests.engines.toy_network import Workshop
from tuner.errors import RequestError
from tuner.jobs.objective import networks_of, objective_of
from tuner.jobs.preparation import Prepared, combine
from tuner.jobs.spec import ONLY, TuneSpec


@pytest.fixture
def pair(workshop: Workshop) -> Prepared:
    """Two networks that share three of their four tasks."""
    members = [workshop.prepare("one", batch=1), workshop.prepare("two", batch=2)]
    return combine(workshop.sessions, members)


def test_union_has_every_task_once_with_the_sum_of_its_weights(pair: Prepared) -> None:
    """The weight of a shared task counts both networks."""
    weights = {task.name: task.weight for task in pair.tasks}

    assert weights == {
        "heavy[1]": 6,
        "light[1]": 2,
        "batch_1[1]": 2,
        "batch_2[1]": 2,
        "tiny[1]": 2,
    }
    assert pair.model.name == "one + two"
    assert pair.n_kernel_calls == 14


def test_calls_are_those_of_each_member(pair: Prepared) -> None:
    """The matrix has a row per network; the rows add up to the weights."""
    networks = networks_of(pair)

    assert networks.names == ("one", "two")
    assert networks.calls.sum(axis=0).tolist() == [task.weight for task in pair.tasks]
    assert sorted(networks.calls[0]) == [0, 1, 1, 2, 3]


def test_union_is_found_again_in_any_order(workshop: Workshop) -> None:
    """The order of the networks does not make another network."""
    members = [workshop.prepare("one", batch=1), workshop.prepare("two", batch=2)]

    first = combine(workshop.sessions, members)
    again = combine(workshop.sessions, members[::-1])

    assert first.network_id == again.network_id
    assert [t.task_id for t in first.tasks] == [t.task_id for t in again.tasks]


def test_same_network_twice_is_refused(workshop: Workshop) -> None:
    """A network counts once, because its calls could not be told apart."""
    with pytest.raises(RequestError, match="one, one"):
        combine(workshop.sessions, [workshop.prepare("one"), workshop.prepare("one")])


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"objective": "requirements", "require_ms": {"three": 1.0}}, "require_ms", "'three' is"),
        ({"objective": "requirements", "require_ms": {ONLY: 1.0}}, "require_ms", "name the"),
        ({"importance": {"one": 2.0, ONLY: 1.0}}, "importance", "name the network"),
    ],
)
def test_networks_that_are_not_in_the_job_are_refused(
    pair: Prepared, fields: dict[str, Any], field: str, words: str
) -> None:
    """The error names the field, and the networks of the job."""
    with pytest.raises(RequestError, match=words) as caught:
        objective_of(TuneSpec(**fields), pair)

    assert caught.value.field == field
    assert "choose one of one, two" in str(caught.value)


def test_only_network_needs_no_name(workshop: Workshop) -> None:
    """A number without a name belongs to the only network."""
    prepared = workshop.prepare("one")

    objective = objective_of(TuneSpec(objective="requirements", require_ms={ONLY: 500.0}), prepared)

    assert objective.value(np.full(len(prepared.tasks), 1e-6)) == 0.5


def test_several_networks_are_tuned_in_one_job(workshop: Workshop, pair: Prepared) -> None:
    """The budget is spent once, and all tasks of both networks get best records."""
    snapshot = workshop.tune(pair, 60, objective="geometric_mean")

    assert len(workshop.trials()) == 60
    assert np.isfinite([row.latency for row in snapshot.rows]).all()


def test_network_that_meets_its_requirement_pulls_no_trials(
    workshop: Workshop, pair: Prepared
) -> None:
    """A job whose networks meet their requirements ends long before its budget."""
    generous = {"one": 1e3, "two": 1e3}

    workshop.tune(pair, 200, trials_per_round=4, objective="requirements", require_ms=generous)

    assert len(workshop.trials()) <= 4 * len(pair.tasks)
    assert workshop.job().state == "done"


def test_only_the_network_that_is_too_slow_is_tuned(workshop: Workshop, pair: Prepared) -> None:
    """A task of the satisfied network alone gets no trials after the warm-up."""
    require_ms = {"one": 1e-6, "two": 1e3}

    snapshot = workshop.tune(
        pair, 80, trials_per_round=4, objective="requirements", require_ms=require_ms
    )

    trials = {row.name: row.n_trials for row in snapshot.rows}
    assert trials["batch_2[1]"] == 4
    assert trials["batch_1[1]"] > 4
