"""What another version measured is found after an upgrade, and never taken for one's own."""

from dataclasses import replace
from typing import Any

import pytest

from records import bests, database, measure_records, targets
from records.models import BestRecord, Target
from tests.engines import toy
from tests.engines.toy_network import Workshop
from tests.engines.upgrades import age, respell
from tests.records import make
from tuner.build_cache.opening import open_local
from tuner.cli.rendering import stale_records as rendering
from tuner.compile.object_compiler import Compiler, SubgraphRequest
from tuner.context import Context
from tuner.engines.base import TargetInfo
from tuner.jobs import stale_records
from tuner.jobs.preparation import Prepared
from tuner.jobs.stale_records import Here, StaleBest
from tuner.settings import Settings

N_TASKS = toy.N_TASKS


def context_of(workshop: Workshop) -> Context:
    """What a command would have opened."""
    engine = workshop.sessions.kw["bind"]
    readers = database.sessions(engine, read_only=True)
    return Context(Settings("", workshop.folder, toy.NAME, 2), engine, workshop.sessions, readers)


def upgraded(workshop: Workshop, **device: Any) -> Prepared:
    """A network that was tuned by version 1, as version 2 prepares it."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    age(workshop.sessions, **({"tvm": "1"} | device))
    return workshop.prepare()


def stale_of(workshop: Workshop, *networks: Prepared) -> tuple[StaleBest, ...]:
    """What a build of networks would tell of."""
    return stale_records.stale_bests(context_of(workshop), networks)


def test_without_an_upgrade_nothing_is_stale(workshop: Workshop) -> None:
    """Neither before tuning nor after."""
    prepared = workshop.prepare()
    assert stale_of(workshop, prepared) == ()

    workshop.tune(prepared, 24, trials_per_round=6)
    assert stale_of(workshop, prepared) == ()


def test_after_an_upgrade_every_best_record_is_stale_and_none_is_used(workshop: Workshop) -> None:
    """They are listed with what differs, those whose calls take longest first."""
    prepared = upgraded(workshop)
    task_ids = [task.task_id for task in prepared.tasks]

    found = stale_of(workshop, prepared)

    with workshop.sessions() as session:
        assert bests.best_latencies(session, task_ids) == {}
        old = {row.record_id for row in session.query(BestRecord)}
    assert {each.record for each in found} == old
    assert len(found) == N_TASKS
    costs = [each.weight * each.latency for each in found]
    assert costs == sorted(costs, reverse=True)
    assert {each.name: each.weight for each in found} == {t.name: t.weight for t in prepared.tasks}
    assert all(each.differs == {"tvm": ("1", None)} and not each.foreign for each in found)


def test_a_best_record_of_its_own_makes_a_task_fresh(workshop: Workshop) -> None:
    """However slow it is."""
    prepared = upgraded(workshop)
    task = prepared.tasks[0]
    with workshop.sessions.begin() as session:
        make_record(session, task.task_id, "own", 9.0)

    found = stale_of(workshop, prepared)

    assert task.workload_hash not in {each.workload for each in found}
    assert len(found) == N_TASKS - 1


def test_a_trace_that_failed_here_gives_way_to_the_next(workshop: Workshop) -> None:
    """It is not offered again, the second best is."""
    prepared = upgraded(workshop)
    first = stale_of(workshop, prepared)[0]
    task_id = next(t.task_id for t in prepared.tasks if t.workload_hash == first.workload)
    with workshop.sessions.begin() as session:
        make_record(session, task_id, first.replays[0].trace_hash, None)

    (again,) = (each for each in stale_of(workshop, prepared) if each.workload == first.workload)

    assert again.record != first.record
    assert again.latency >= first.latency


def test_several_records_a_task_leave_out_those_that_were_measured(workshop: Workshop) -> None:
    """The rest of the best three, while the best of now is one of them."""
    prepared = upgraded(workshop)
    where = Here(toy.NAME, prepared.target, prepared.target_id)
    with workshop.sessions() as session:
        three = stale_records.find(session, where, per_task=3)[0]
    assert [each.latency for each in three.replays] == sorted(e.latency for e in three.replays)
    task_id = next(t.task_id for t in prepared.tasks if t.workload_hash == three.workload)
    with workshop.sessions.begin() as session:
        make_record(session, task_id, three.replays[0].trace_hash, 1.0)
        left = {s.workload: s for s in stale_records.find(session, where, per_task=3)}
        assert left[three.workload].replays == three.replays[1:]
        make_record(session, task_id, "tuned further", 0.5)
        assert three.workload not in {
            s.workload for s in stale_records.find(session, where, None, 3)
        }


def test_a_device_of_ones_own_goes_before_another(workshop: Workshop) -> None:
    """Records of another device are marked, and taken where there are no others."""
    prepared = upgraded(workshop, name="fast toy")
    assert all(each.foreign and each.device == "fast toy" for each in stale_of(workshop, prepared))
    task = prepared.tasks[0]
    with workshop.sessions.begin() as session:
        make_record(session, task.task_id, "own", 9.0)
    age(workshop.sessions, tvm="2")

    found = {each.workload: each for each in stale_of(workshop, workshop.prepare())}

    own = found.pop(task.workload_hash)
    assert (own.foreign, own.latency, own.differs) == (False, 9.0, {"tvm": ("2", None)})
    assert all(each.foreign for each in found.values())


@pytest.mark.parametrize(
    ("device", "attributes", "n_found"),
    [
        ({"tvm": "1"}, {"keys": ["toy"]}, N_TASKS),  # an upgrade spells a target otherwise
        ({"tvm": "1"}, {"mcpu": "other"}, 0),  # code for another CPU
        ({"name": "toy 2"}, {"keys": ["toy"]}, 0),  # no upgrade: another target
    ],
)
def test_targets_are_compared_by_their_hardware(
    workshop: Workshop, device: dict[str, Any], attributes: dict[str, Any], n_found: int
) -> None:
    """An upgrade may spell a target in another way; code for another CPU is of no use."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    respell(workshop.sessions, age(workshop.sessions, **device), **attributes)

    found = stale_of(workshop, workshop.prepare())

    assert len(found) == n_found
    assert all(each.differs["target"][1] == toy.SPEC for each in found)


def test_without_weights_all_networks_count(workshop: Workshop) -> None:
    """A network that both versions have split counts once, a shared task for each network."""
    first = workshop.prepare()
    workshop.prepare("other", batch=2)
    workshop.tune(first, 24, trials_per_round=6)
    age(workshop.sessions, tvm="1")
    prepared = workshop.prepare()
    where = Here(toy.NAME, prepared.target, prepared.target_id)

    with workshop.sessions() as session:
        found = {each.name: each.weight for each in stale_records.find(session, where)}
        none = stale_records.find(session, replace(where, engine="another"))

    assert found == {"heavy[1]": 6, "light[1]": 2, "batch_1[1]": 2, "tiny[1]": 2}
    assert none == ()


def test_records_of_no_network_count_once(workshop: Workshop) -> None:
    """As those do that were imported into an empty database."""
    with workshop.sessions.begin() as session:
        target_id = make.target(session)
        task_id = make.task(session)
        make_record(session, task_id, "a", 1.0)
        spec, device = session.get_one(Target, target_id).spec, dict(make.CPU) | {"driver": 2}
        here = targets.ensure_target(session, spec, device).id
        where = Here("relax", TargetInfo(spec, "llvm", device), here)

        (found,) = stale_records.find(session, where)

        assert (found.weight, found.workload) == (1, "w0")
        assert found.differs == {"driver": (None, 2)}
        assert stale_records.find(session, where, {}) == ()


def test_shapes_of_one_model_add_up(workshop: Workshop) -> None:
    """A build of several sets of shapes lists what they share once."""
    first, second = workshop.prepare(), workshop.prepare("other", batch=2)
    workshop.tune(first, 24, trials_per_round=6)
    workshop.tune(second, 24, trials_per_round=6)
    age(workshop.sessions, tvm="1")

    found = stale_of(workshop, workshop.prepare(), workshop.prepare("other", batch=2))

    assert len(found) == N_TASKS + 1
    assert {each.name: each.weight for each in found}["heavy[1]"] == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"device": {"name": "toy", "tvm": "2"}},
        {"device": {"name": "toy", "driver": "550"}},
        {"device": {"name": "another toy"}},
        {"compiler": {"objects": 2}},
        {"spec": '{"kind":"toy","mcpu":"other"}'},
    ],
)
def test_what_was_compiled_before_an_upgrade_is_not_found(
    workshop: Workshop, changes: dict[str, Any]
) -> None:
    """The same subgraph with the same trace has another key: another version, driver or device."""
    context, task = context_of(workshop), workshop.prepare().tasks[0]
    wanted = SubgraphRequest(task.workload_hash, task.name, task.task_id, "[]", "trace")
    before = Compiler(
        context,
        open_local(context.settings),
        toy.describe_target("llvm"),
        workshop.workers.builders,
    )
    after = replace(before, target=replace(before.target, **changes))
    (workshop.folder / "nothing").mkdir()
    claim = before.cache.try_lock(before.key_of(wanted))
    assert claim is not None
    with claim:
        claim.keep(workshop.folder / "nothing", {}).close()

    assert before.cache.find(before.key_of(wanted)) is not None
    assert after.cache.find(after.key_of(wanted)) is None
    assert before.key_of(replace(wanted, name="renamed")).digest == before.key_of(wanted).digest


def test_notes_name_what_changed_and_what_to_do(workshop: Workshop) -> None:
    """A line for each difference, with the command that measures them all again."""
    found = stale_of(workshop, upgraded(workshop))

    (line,) = rendering.notes(found, 30, "net.onnx")
    assert line == (
        "4 of 30 subgraphs have records of another version only (tvm 1 -> none); "
        "measure them again with `tuner records verify net.onnx --top 4`"
    )
    assert rendering.notes([], 30) == []
    assert rendering.table_of(found).row_count == N_TASKS
    row = rendering.as_json(found)[0]
    assert (row["differs"], row["record"]) == ({"tvm": ["1", None]}, found[0].record)


def make_record(session: Any, task_id: int, trace_hash: str, secs: float | None) -> None:
    """Store a trial that nobody paid for: verified, or of a wrong result."""
    new = (
        make.failed(task_id, trace_hash, "wrong_result")
        if secs is None
        else make.timed(task_id, trace_hash, secs)
    )
    measure_records.add_record(session, new)
