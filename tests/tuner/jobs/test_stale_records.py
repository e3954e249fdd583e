"""Records of another version are found after an upgrade, and are not used as those of this one."""

from dataclasses import replace
from typing import Any

import pytest

from records import bests, database, measure_records, targets
from records.models import BestRecord, Target
from tests.engines import toy
from tests.engines.toy_network import Workshop
from tests.engines.upgrades import age, respell
from tests.records import make
from tuner.build_cache.cache import open_local
from tuner.cli.rendering.records import stale_records as rendering
from tuner.compile.object_compiler import ObjectCompiler
from tuner.compile.subgraphs import SubgraphRequest
from tuner.context import Context
from tuner.engines.base import TargetInfo
from tuner.jobs import stale_records
from tuner.jobs.preparation import Prepared
from tuner.jobs.stale_records import EngineTarget, StaleBest
from tuner.settings import Settings

N_TASKS = toy.N_TASKS


def context_of(workshop: Workshop) -> Context:
    """Return the context that a command would open."""
    engine = workshop.sessions.kw["bind"]
    readers = database.sessions(engine, read_only=True)
    return Context(Settings("", workshop.folder, toy.NAME, 2), engine, workshop.sessions, readers)


def upgraded(workshop: Workshop, **device: Any) -> Prepared:
    """Prepare a network with version 2 that was tuned with version 1."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    age(workshop.sessions, **({"tvm": "1"} | device))
    return workshop.prepare()


def stale_of(workshop: Workshop, *networks: Prepared) -> tuple[StaleBest, ...]:
    """Return the stale best records that a build of networks reports."""
    return stale_records.stale_bests(context_of(workshop), networks)


def test_without_an_upgrade_nothing_is_stale(workshop: Workshop) -> None:
    """A network has no stale records before tuning, nor after."""
    prepared = workshop.prepare()
    assert stale_of(workshop, prepared) == ()

    workshop.tune(prepared, 24, trials_per_round=6)
    assert stale_of(workshop, prepared) == ()


def test_after_an_upgrade_every_best_record_is_stale_and_none_is_used(workshop: Workshop) -> None:
    """All are listed with their differences, in falling order of calls times latency."""
    prepared = upgraded(workshop)
    task_ids = [task.task_id for task in prepared.tasks]

    stale = stale_of(workshop, prepared)

    with workshop.sessions() as session:
        assert bests.best_latencies(session, task_ids) == {}
        old = {row.record_id for row in session.query(BestRecord)}
    assert {best.record for best in stale} == old
    assert len(stale) == N_TASKS
    costs = [best.weight * best.latency for best in stale]
    assert costs == sorted(costs, reverse=True)
    assert {best.name: best.weight for best in stale} == {t.name: t.weight for t in prepared.tasks}
    assert all(best.differs == {"tvm": ("1", None)} and not best.foreign for best in stale)


def test_a_best_record_of_its_own_makes_a_task_fresh(workshop: Workshop) -> None:
    """A slow best record counts, too."""
    prepared = upgraded(workshop)
    task = prepared.tasks[0]
    with workshop.sessions.begin() as session:
        make_record(session, task.task_id, "own", 9.0)

    stale = stale_of(workshop, prepared)

    assert task.workload_hash not in {best.workload for best in stale}
    assert len(stale) == N_TASKS - 1


def test_a_trace_that_failed_here_gives_way_to_the_next(workshop: Workshop) -> None:
    """The second best record replaces the one that failed."""
    prepared = upgraded(workshop)
    first = stale_of(workshop, prepared)[0]
    task_id = next(t.task_id for t in prepared.tasks if t.workload_hash == first.workload)
    with workshop.sessions.begin() as session:
        make_record(session, task_id, first.replays[0].trace_hash, None)

    (again,) = (best for best in stale_of(workshop, prepared) if best.workload == first.workload)

    assert again.record != first.record
    assert again.latency >= first.latency


def test_several_records_a_task_leave_out_those_that_were_measured(workshop: Workshop) -> None:
    """The other two of the best three remain, as long as one of the three is the best record."""
    prepared = upgraded(workshop)
    own = EngineTarget(toy.NAME, prepared.target, prepared.target_id)
    with workshop.sessions() as session:
        three = stale_records.find(session, own, per_task=3)[0]
    assert [best.latency for best in three.replays] == sorted(e.latency for e in three.replays)
    task_id = next(t.task_id for t in prepared.tasks if t.workload_hash == three.workload)
    with workshop.sessions.begin() as session:
        make_record(session, task_id, three.replays[0].trace_hash, 1.0)
        left = {s.workload: s for s in stale_records.find(session, own, per_task=3)}
        assert left[three.workload].replays == three.replays[1:]
        make_record(session, task_id, "tuned further", 0.5)
        assert three.workload not in {s.workload for s in stale_records.find(session, own, None, 3)}


def test_records_of_the_same_device_go_before_those_of_another(workshop: Workshop) -> None:
    """Records of another device are marked, and used only where there are no others."""
    prepared = upgraded(workshop, name="fast toy")
    assert all(best.foreign and best.device == "fast toy" for best in stale_of(workshop, prepared))
    task = prepared.tasks[0]
    with workshop.sessions.begin() as session:
        make_record(session, task.task_id, "own", 9.0)
    age(workshop.sessions, tvm="2")

    stale = {best.workload: best for best in stale_of(workshop, workshop.prepare())}

    same_device = stale.pop(task.workload_hash)
    assert (same_device.foreign, same_device.latency, same_device.differs) == (
        False,
        9.0,
        {"tvm": ("2", None)},
    )
    assert all(best.foreign for best in stale.values())


@pytest.mark.parametrize(
    ("device", "attributes", "n_stale"),
    [
        ({"tvm": "1"}, {"keys": ["toy"]}, N_TASKS),  # an upgrade that spells a target differently
        ({"tvm": "1"}, {"mcpu": "other"}, 0),  # code for another CPU
        ({"name": "toy 2"}, {"keys": ["toy"]}, 0),  # another target, without an upgrade
    ],
)
def test_targets_are_compared_by_their_hardware(
    workshop: Workshop, device: dict[str, Any], attributes: dict[str, Any], n_stale: int
) -> None:
    """An upgrade may spell a target differently; code for another CPU cannot be used."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=6)
    respell(workshop.sessions, age(workshop.sessions, **device), **attributes)

    stale = stale_of(workshop, workshop.prepare())

    assert len(stale) == n_stale
    assert all(best.differs["target"][1] == toy.SPEC for best in stale)


def test_without_weights_all_networks_count(workshop: Workshop) -> None:
    """A network that both versions split counts once, a shared task once per network."""
    first = workshop.prepare()
    workshop.prepare("other", batch=2)
    workshop.tune(first, 24, trials_per_round=6)
    age(workshop.sessions, tvm="1")
    prepared = workshop.prepare()
    own = EngineTarget(toy.NAME, prepared.target, prepared.target_id)

    with workshop.sessions() as session:
        calls = {best.name: best.weight for best in stale_records.find(session, own)}
        none = stale_records.find(session, replace(own, engine="another"))

    assert calls == {"heavy[1]": 6, "light[1]": 2, "batch_1[1]": 2, "tiny[1]": 2}
    assert none == ()


def test_records_without_a_network_count_once(workshop: Workshop) -> None:
    """Imported records in an empty database belong to no network."""
    with workshop.sessions.begin() as session:
        target_id = make.target(session)
        task_id = make.task(session)
        make_record(session, task_id, "a", 1.0)
        spec, device = session.get_one(Target, target_id).spec, dict(make.CPU) | {"driver": 2}
        here = targets.ensure_target(session, spec, device).id
        own = EngineTarget("relax", TargetInfo(spec, "llvm", device), here)

        (best,) = stale_records.find(session, own)

        assert (best.weight, best.workload) == (1, "w0")
        assert best.differs == {"driver": (None, 2)}
        assert stale_records.find(session, own, {}) == ()


def test_shapes_of_one_model_add_up(workshop: Workshop) -> None:
    """A build of several sets of shapes lists a shared workload once."""
    first, second = workshop.prepare(), workshop.prepare("other", batch=2)
    workshop.tune(first, 24, trials_per_round=6)
    workshop.tune(second, 24, trials_per_round=6)
    age(workshop.sessions, tvm="1")

    stale = stale_of(workshop, workshop.prepare(), workshop.prepare("other", batch=2))

    assert len(stale) == N_TASKS + 1
    assert {best.name: best.weight for best in stale}["heavy[1]"] == 6


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
def test_objects_compiled_before_an_upgrade_are_not_reused(
    workshop: Workshop, changes: dict[str, Any]
) -> None:
    """Another version, driver or device gives the same subgraph and trace another key."""
    context, task = context_of(workshop), workshop.prepare().tasks[0]
    request = SubgraphRequest(task.workload_hash, task.name, task.task_id, "[]", "trace")
    before = ObjectCompiler(
        context,
        open_local(context.settings),
        toy.describe_target("llvm"),
        workshop.workers.builders,
    )
    after = replace(before, target=replace(before.target, **changes))
    (workshop.folder / "nothing").mkdir()
    claim = before.cache.try_lock(before.key_of(request))
    assert claim is not None
    with claim:
        claim.keep(workshop.folder / "nothing", {}).close()

    assert before.cache.find(before.key_of(request)) is not None
    assert after.cache.find(after.key_of(request)) is None
    assert before.key_of(replace(request, name="renamed")).digest == before.key_of(request).digest


def test_notes_name_what_changed_and_what_to_do(workshop: Workshop) -> None:
    """A note has the difference and the command that measures all its records again."""
    stale = stale_of(workshop, upgraded(workshop))

    (line,) = rendering.notes(stale, 30, "tuner records verify net.onnx")
    assert line == (
        "4 of 30 subgraphs have records of another version (tvm 1 -> none) only; "
        "measure them here with `tuner records verify net.onnx --top 4`"
    )
    assert rendering.notes([], 30, "") == []
    claims = [replace(each, differs={"claimed": (True, None)}) for each in stale]
    (line,) = rendering.notes(claims, 30, "verify")
    assert line == "4 of 30 subgraphs have claims only; measure them here with `verify --top 4`"
    assert len(rendering.table_of(stale).rows) == N_TASKS
    row = rendering.as_json(stale)[0]
    assert (row["differs"], row["record"]) == ({"tvm": ["1", None]}, stale[0].record)


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        (
            '{"arch":"sm_90","a":1}',
            '{"arch":"sm_90","b":2}',
            "tvm 1 -> 2, a 1 -> none, b none -> 2",
        ),
        ("llvm", '{"kind":"llvm"}', 'tvm 1 -> 2, target llvm -> {"kind":"llvm"}'),
        ('"llvm"', '{"kind":"llvm"}', 'tvm 1 -> 2, target "llvm" -> {"kind":"llvm"}'),
    ],
)
def test_targets_differ_in_words_by_their_attributes(then: str, now: str, words: str) -> None:
    """Their texts are long, and mostly equal."""
    assert rendering.differences_in_words({"tvm": ("1", "2"), "target": (then, now)}) == words


def make_record(session: Any, task_id: int, trace_hash: str, secs: float | None) -> None:
    """Store a trial without a pick: verified, or of a wrong result if ``secs`` is None."""
    new = (
        make.failed(task_id, trace_hash, "wrong_result")
        if secs is None
        else make.timed(task_id, trace_hash, secs)
    )
    measure_records.add_record(session, new)
