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
    """Return an empty database."""
    opened = database.open_database(f"sqlite:///{tmp_path / 'records.db'}")
    yield opened
    opened.dispose()


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    """Return sessions on the database."""
    return database.sessions(engine)


def test_every_task_is_stored_once(
    sessions: sessionmaker[Session], curves: list[Recording]
) -> None:
    """The requested number of tasks is spread over the networks, and no two networks share one."""
    stored = networks.store(sessions, SCENARIO, curves)

    assert [len(network.tasks) for network in stored] == [10, 10, 11, 10, 11]
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Task)) == 52
        assert session.scalar(select(func.count()).select_from(Workload)) == 52


def test_the_returned_networks_equal_the_stored_ones(
    sessions: sessionmaker[Session], curves: list[Recording]
) -> None:
    """Ids, weights and order are those of the database."""
    stored = networks.store(sessions, SCENARIO, curves)

    with sessions() as session:
        for network in stored:
            weighted = tasks.weighted_tasks(session, network.network_id, network.target_id)
            assert tuple(weighted) == network.tasks
            assert sum(task.weight for task in weighted) == network.n_kernel_calls


def test_networks_are_spread_over_the_kinds_of_device(
    sessions: sessionmaker[Session], curves: list[Recording]
) -> None:
    """Each kind has a target of its own."""
    stored = networks.store(sessions, SCENARIO, curves)

    first, second = stored[0].target_id, stored[1].target_id
    assert [network.target_id for network in stored] == [first, second, first, second, first]
    assert stored[0].target.device != stored[1].target.device


def test_the_same_scenario_again_stores_nothing(
    sessions: sessionmaker[Session], curves: list[Recording]
) -> None:
    """A simulation on the database of an earlier one continues with its networks."""
    before = networks.store(sessions, SCENARIO, curves)

    assert networks.store(sessions, SCENARIO, curves) == before


def test_another_seed_draws_other_tasks(
    sessions: sessionmaker[Session], curves: list[Recording]
) -> None:
    """The database holds the networks of both seeds."""
    before = networks.store(sessions, SCENARIO, curves)
    after = networks.store(sessions, replace(SCENARIO, seed=1), curves)

    assert not {each.network_id for each in before} & {each.network_id for each in after}


def test_recordings_of_nothing_are_refused(sessions: sessionmaker[Session]) -> None:
    """There are no tasks to draw from."""
    with pytest.raises(RequestError, match="no task with a latency"):
        networks.store(sessions, SCENARIO, [])
