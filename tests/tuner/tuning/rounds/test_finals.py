"""Finals race what could win, in heats over all tasks, and decide by the confirmed latency."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select

from records import measure_records
from records.models import BestRecord, MeasureRecord, Target
from tests.engines import toy
from tests.engines.toy_network import Workshop
from tuner.devices.device import Device
from tuner.engines.base import EvaluatorSettings, RunResult
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.interleaved_timing import InterleavedTiming
from tuner.tuning.rounds import finals

Heat = tuple[int, tuple[int, ...], int]


@pytest.fixture
def heats(monkeypatch: pytest.MonkeyPatch) -> list[Heat]:
    """Task, positions of the rivals and turns of each heat that runs."""
    ran: list[Heat] = []
    time = InterleavedTiming.time

    async def spy(
        timing: InterleavedTiming,
        indices: Sequence[int],
        device: Device,
        *,
        n_turns: int,
        **options: Any,
    ) -> list[RunResult]:
        ran.append((timing._task.task_id, tuple(indices), n_turns))
        return await time(timing, indices, device, n_turns=n_turns, **options)

    monkeypatch.setattr(InterleavedTiming, "time", spy)
    return ran


def bests_of(workshop: Workshop) -> dict[int, BestRecord]:
    """Read the best record of each task."""
    with workshop.sessions() as session:
        return {row.task_id: row for row in session.scalars(select(BestRecord))}


def test_heats_halve_the_rivals_and_run_over_all_tasks_in_turns(
    workshop: Workshop, heats: list[Heat]
) -> None:
    """No task has its second heat before all had their first."""
    workshop.tune(workshop.prepare(), 80)

    n_races = len({task_id for task_id, _, _ in heats})
    assert [n_turns for _, _, n_turns in heats] == [2] * n_races + [3] * n_races + [4] * n_races
    assert n_races == 4
    n_rivals = [
        [len(rivals) for of_task, rivals, _ in heats if of_task == task_id]
        for task_id, *_ in heats[:n_races]
    ]
    assert max(first for first, *_ in n_rivals) > 1
    for first, second, third in n_rivals:
        assert first <= 8
        assert (second, third) == (math.ceil(first / 2), math.ceil(first / 4))


def test_winners_are_confirmed_and_not_raced_again(workshop: Workshop, heats: list[Heat]) -> None:
    """A second run of the same job has nothing to decide."""
    prepared = workshop.prepare()
    workshop.tune(prepared, 48)
    before = bests_of(workshop)
    heats.clear()

    workshop.tune(prepared, 48)

    assert heats == []
    assert all(row.confirmed for row in before.values())
    assert {row.record_id for row in bests_of(workshop).values()} == {
        row.record_id for row in before.values()
    }


def test_a_record_that_comes_near_reopens_the_race_of_its_task_alone(
    workshop: Workshop, heats: list[Heat]
) -> None:
    """It loses if it owed its latency to luck, whatever that was."""
    prepared = workshop.prepare()
    workshop.tune(prepared, 48)
    winner = bests_of(workshop)[1]
    heats.clear()
    lucky = '{"task": "heavy", "program": 399}'
    with workshop.sessions.begin() as session:
        measure_records.add_record(
            session,
            measure_records.NewRecord(
                task_id=1,
                trace=lucky,
                trace_hash=measure_records.trace_hash(lucky),
                run_secs=[0.9 * winner.latency] * 3,
                verified=True,
                worker="w",
            ),
        )

    workshop.tune(prepared, 48)

    assert {task_id for task_id, _, _ in heats} == {1}
    after = bests_of(workshop)[1]
    assert (after.record_id, after.confirmed) == (winner.record_id, True)
    assert toy.run_secs_of(lucky, 4e-3) > winner.latency


def test_the_scheduler_counts_from_the_confirmed_latency(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A latency that a final has refuted does not count as progress."""
    prepared = workshop.prepare()

    async def slower(
        _timing: InterleavedTiming,
        indices: Sequence[int],
        _device: Device,
        *,
        n_turns: int,
        **_options: Any,
    ) -> list[RunResult]:
        return [RunResult((5e-3,) * n_turns) for _ in indices]

    monkeypatch.setattr(InterleavedTiming, "time", slower)
    snapshot = workshop.tune(prepared, 60)

    assert set(snapshot.latencies) == {5e-3}
    assert {features.best_secs for features in snapshot.features} == {5e-3}
    assert {features.curve[-1] for features in snapshot.features} == {5e-3}


def test_a_race_that_cannot_run_leaves_the_records_as_they_are(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rivals fail, and the first samples decide."""

    async def broken(
        _timing: InterleavedTiming,
        indices: Sequence[int],
        _device: Device,
        *,
        n_turns: int,
        **_options: Any,
    ) -> list[RunResult]:
        return [RunResult(error_kind="run_error", error_text=f"turn {n_turns}") for _ in indices]

    monkeypatch.setattr(InterleavedTiming, "time", broken)
    workshop.tune(workshop.prepare(), 24, trials_per_round=4)

    assert Counter(row.confirmed for row in bests_of(workshop).values()) == {False: 4}
    with workshop.sessions() as session:
        confirmed = select(MeasureRecord).where(MeasureRecord.confirmed_secs.is_not(None))
        assert session.scalars(confirmed).all() == []


def test_the_clock_of_all_heats_is_divided_out(workshop: Workshop) -> None:
    """The typical reading counts; a race on a device without a clock kernel has no factor."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=4)
    context = workshop.context.measure_context
    with workshop.sessions.begin() as session:
        record = session.get_one(MeasureRecord, bests_of(workshop)[1].record_id)
        setup = MeasureSetup(context, toy.SPEC, EvaluatorSettings(), 1.0)
        task = TaskUnderTest(1, "", b"")
        timing = InterleavedTiming(setup, task, [record.trace])
        race = finals.Race(task, [record], timing, [0], [[2.0, 2.0]], [0.9, 0.5, 1.1])
        race.store(
            session, None if race.median_clock_secs is None else 0.45 / race.median_clock_secs
        )

    row = bests_of(workshop)[1]
    assert (row.record_id, row.latency) == (record.id, 1.0)


def test_the_first_reading_of_the_clock_may_be_that_of_a_final(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine none before was undisturbed; the reference is stored then."""
    run_heat = finals.Race.run_heat

    async def with_clock(race: finals.Race, *arguments: Any) -> None:
        await run_heat(race, *arguments)
        if race.task.task_id != 1:
            race.clock_secs.append(0.5)

    monkeypatch.setattr(finals.Race, "run_heat", with_clock)

    workshop.tune(workshop.prepare(), 24, trials_per_round=4)

    assert all(row.confirmed for row in bests_of(workshop).values())
    with workshop.sessions() as session:
        assert session.scalars(select(Target.clock_secs)).all() == [0.5]
