"""Networks are extracted into tasks once per target."""

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from records import database, networks, tasks
from tests.records import make


def test_ensure_network_keeps_the_first(session: Session) -> None:
    """The hash identifies the network; a later name is ignored."""
    first = networks.ensure_network(session, "abc", "resnet", {"x": {"shape": [1]}})
    again = networks.ensure_network(session, "abc", "other", {})

    assert (again.id, again.name) == (first.id, "resnet")
    assert again.inputs == {"x": {"shape": [1]}}


def test_weighted_tasks_keep_the_order_of_the_network(session: Session) -> None:
    """Order, weights and names are stored; the weights of duplicate workloads add up."""
    network_id, target_id = make.network(session), make.target(session)
    extracted = [(make.workload("z"), 2), (make.workload("a"), 1), (make.workload("z"), 3)]

    networks.record_extraction(session, network_id, target_id, extracted, 7, ["note"], {"k": 1})
    weighted = tasks.weighted_tasks(session, network_id, target_id)

    assert [(task.workload_hash, task.weight) for task in weighted] == [("z", 5), ("a", 1)]
    assert (weighted[0].name, weighted[0].flop, weighted[0].engine) == ("dense_z", 2e9, "relax")
    assert tasks.workload_ir(session, weighted[0].task_id) == b"\x00ir-z"


def test_record_extraction_is_idempotent(session: Session) -> None:
    """The first extraction stays."""
    network_id, target_id = make.network(session), make.target(session)
    assert networks.extraction_of(session, network_id, target_id) is None

    for weight in (2, 9):
        networks.record_extraction(
            session, network_id, target_id, [(make.workload(), weight)], weight, ["n"], None
        )
    mark = networks.extraction_of(session, network_id, target_id)

    assert mark is not None
    assert (mark.n_kernel_calls, mark.notes, mark.extra) == (2, ["n"], {})
    assert [task.weight for task in tasks.weighted_tasks(session, network_id, target_id)] == [2]


def test_weighted_tasks_are_those_of_the_target(session: Session) -> None:
    """One network on two targets has separate tasks."""
    network_id = make.network(session)
    mine, other = make.target(session, 2), make.target(session, 64)
    for target_id in (mine, other):
        networks.record_extraction(session, network_id, target_id, [(make.workload(), 1)], 1)

    ids = {tasks.weighted_tasks(session, network_id, t)[0].task_id for t in (mine, other)}

    assert len(ids) == 2
    assert len(tasks.weighted_tasks(session, network_id, mine)) == 1


def test_extractions_that_share_workloads_do_not_deadlock(engine: Engine) -> None:
    """Two networks list the same subgraphs in opposite orders at the same time."""
    factory = database.sessions(engine)
    hashes = [f"w{n}" for n in range(30)]
    with factory.begin() as session:
        target_id = make.target(session)
        network_ids = [make.network(session, f"n{n}") for n in range(6)]

    def extract(network_id: int) -> list[str]:
        order = hashes if network_id % 2 else hashes[::-1]
        with factory.begin() as session:
            workloads = [(make.workload(name), 1) for name in order]
            networks.record_extraction(session, network_id, target_id, workloads, 30)
            rows = tasks.weighted_tasks(session, network_id, target_id)
        return [row.workload_hash for row in rows]

    with ThreadPoolExecutor(6) as pool:
        orders = list(pool.map(extract, network_ids))

    assert orders == [hashes if n % 2 else hashes[::-1] for n in network_ids]
