"""Networks of simulated tasks in a database."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.simulation import networks
from benchmarks.simulation.scenario import Scenario
from records import database, tasks
from records.models import Task, Workload
from scheduler.replay import Recording
from tuner.errors import RequestError

SCENARIO = Scenario(n_devices=4, n_networks=5, n_tasks=52, n_fingerprints=2)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """An empty database."""
    opened = database.open_database(f"sqlite:///{tmp_path / 'records.db'}")
    yield opened
    opened.dispose()


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    """Sessions on it."""
    return database.sessions(engine)


def test_every_task_is_there_once(sessions: sessionmaker[Session], curves: list[Recording]) -> None:
    """As many tasks as asked, spread over the networks, and none that two of them share."""
    stored = networks.store(sessions, SCENARIO, curves)

    assert [len(each.tasks) for each in stored] == [10, 10, 11, 10, 11]
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Task)) == 52
        assert session.scalar(select(func.count()).select_from(Workload)) == 52


def test_what_is_returned_is_what_the_database_has(
    sessions: sessionmaker[Session], curves: list[Recording]
) -> None:
    """Ids, weights and order are those that any other reader finds."""
    stored = networks.store(sessions, SCENARIO, curves)

    with sessions() as session:
        for each in stored:
            found = tasks.weighted_tasks(session, each.network_id, each.target_id)
            assert tuple(found) == each.tasks
            assert sum(task.weight for task in found) == each.n_kernel_calls


def test_networks_are_spread_over_the_kinds_of_device(
    sessions: sessionmaker[Session], curves: list[Recording]
) -> None:
    """Each kind is a target of its own."""
    stored = networks.store(sessions, SCENARIO, curves)

    first, second = stored[0].target_id, stored[1].target_id
    assert [each.target_id for each in stored] == [first, second, first, second, first]
    assert stored[0].target.device != stored[1].target.device


def test_the_same_scenario_again_stores_nothing(
    sessions: sessionmaker[Session], curves: list[Recording]
) -> None:
    """A simulation on a database of an earlier one goes on with its networks."""
    before = networks.store(sessions, SCENARIO, curves)

    assert networks.store(sessions, SCENARIO, curves) == before


def test_another_seed_draws_other_tasks(
    sessions: sessionmaker[Session], curves: list[Recording]
) -> None:
    """Their networks lie beside each other."""
    before = networks.store(sessions, SCENARIO, curves)
    after = networks.store(sessions, replace(SCENARIO, seed=1), curves)

    assert not {each.network_id for each in before} & {each.network_id for each in after}


def test_recordings_of_nothing_are_refused(sessions: sessionmaker[Session]) -> None:
    """There is nothing to draw tasks from."""
    with pytest.raises(RequestError, match="no task of which anything ran"):
        networks.store(sessions, SCENARIO, [])
