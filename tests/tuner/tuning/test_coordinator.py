"""Coordination of several jobs: shares, common tasks, changed limits, failures and devices."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError

from records import database, jobs
from records.errors import LeaseLost, SchemaTooNew
from records.models import Job, MeasureRecord, Pick
from records.picks import NewPick
from records.service import submissions
from tests.engines import toy
from tests.engines.toy_network import Workshop
from tuner.devices.device import Device
from tuner.devices.runners.local import LocalRunner
from tuner.engines.base import Candidate, TargetInfo
from tuner.errors import DiskFull, WorkError
from tuner.executors.local import LocalExecutor
from tuner.files import disk_floor
from tuner.files.disk_floor import DiskWatch
from tuner.measure import round_measurement
from tuner.measure.round_measurement import RoundMeasurement
from tuner.settings import Settings
from tuner.settings.retention import RetentionSettings
from tuner.tuning import event_loop
from tuner.tuning import session as sessions_of_jobs
from tuner.tuning.coordinator import Coordinator
from tuner.tuning.session import TuningSession
from tuner.tuning.status import TuningStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def private(workshop: Workshop, name: str, trials: int, **options: Any) -> TuningSession:
    """Open a job whose tasks no other network has."""
    extracted = [toy.make_task(f"{name}_{i}", weight=1, base_secs=1e-3) for i in range(2)]
    prepared = workshop.prepare(name, extracted=extracted)
    return workshop.session(prepared, trials, **{"trials_per_round": 4, **options})


def own_trials(workshop: Workshop, job_id: int) -> int:
    """Count the trials that a job paid for."""
    with workshop.sessions() as session:
        records = select(MeasureRecord.id).join(Pick).where(Pick.job_id == job_id)
        return len(session.scalars(records).all())


def order_of_jobs(workshop: Workshop) -> list[int]:
    """Return the job of each pick, in the order of the picks."""
    with workshop.sessions() as session:
        return list(session.scalars(select(Pick.job_id).order_by(Pick.id)))


def test_jobs_take_turns_and_spend_their_budgets_exactly(workshop: Workshop) -> None:
    """Two jobs of the same priority alternate, and both spend exactly their budgets."""
    pair = [private(workshop, name, 24) for name in ("a", "b")]

    workshop.run(*pair)

    assert [own_trials(workshop, job.job_id) for job in pair] == [24, 24]
    assert [workshop.job(job.job_id).state for job in pair] == ["done", "done"]
    assert len(set(order_of_jobs(workshop)[:4])) == 2


@pytest.mark.slow("tunes for 12 s")
def test_priority_buys_a_larger_share(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose priority is 2 higher gets about four fifths of the first rounds."""
    clock = iter(range(10**6))
    monkeypatch.setattr(workshop.context, "now", lambda: float(next(clock)))
    slow, fast = private(workshop, "slow", 200), private(workshop, "fast", 200, priority=2)

    workshop.run(slow, fast)

    first = order_of_jobs(workshop)[:40]
    assert first.count(fast.job_id) == pytest.approx(32, abs=2)


@pytest.mark.parametrize("n_steps", range(5))
def test_a_wait_that_is_cancelled_ends_the_run(workshop: Workshop, n_steps: int) -> None:
    """Also if what it waits for happens at the same moment: a service would never stop."""

    async def stop() -> None:
        coordinator = Coordinator(workshop.context, keep_running=True)
        serving = asyncio.create_task(coordinator.serve())
        await asyncio.sleep(0.05)
        coordinator._wake.set()
        for _ in range(n_steps):
            await asyncio.sleep(0)
        serving.cancel()
        _, running = await asyncio.wait([serving], timeout=5.0)
        assert not running

    asyncio.run(stop())


def test_common_tasks_are_tuned_once_and_credited_to_all(workshop: Workshop) -> None:
    """Two networks of the same tasks spend one budget together, not two."""
    pair = [workshop.session(workshop.prepare(name), 24, trials_per_round=4) for name in ("a", "b")]

    workshop.run(*pair)

    assert 24 <= len(workshop.trials()) <= 28
    assert [workshop.job(job.job_id).state for job in pair] == ["done", "done"]


@pytest.mark.parametrize("state", ["paused", "cancelled"])
def test_a_stopped_job_ends_with_its_round(
    workshop: Workshop, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is paused or cancelled completes its round only; the other job continues."""
    clock = iter(range(10**6))
    monkeypatch.setattr(workshop.context, "now", lambda: float(next(clock)))
    stopped, other = private(workshop, "a", 40), private(workshop, "b", 24)

    def stop(_: TuningStatus) -> None:
        if own_trials(workshop, stopped.job_id) >= 8:
            with workshop.sessions.begin() as session:
                jobs.set_state(session, stopped.job_id, state)  # type: ignore[arg-type]

    other._publisher._on_status = stop
    workshop.run(stopped, other)

    assert workshop.job(stopped.job_id).state == state
    assert 8 <= own_trials(workshop, stopped.job_id) <= 12
    assert own_trials(workshop, other.job_id) == 24


@pytest.mark.parametrize("state", ["paused", "cancelled"])
def test_a_long_round_ends_when_its_job_is_stopped(
    workshop: Workshop, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends between two candidates, and the job continues it without measuring any again."""
    monkeypatch.setattr(round_measurement, "_MAX_HOLD_SECS", 0.0)
    monkeypatch.setattr(sessions_of_jobs, "_LIMITS_INTERVAL_SECS", 0.0)
    job = private(workshop, "a", 24, trials_per_round=12)
    on_result, results = job.on_result, []

    def stop() -> None:
        on_result()
        results.append(job)
        if len(results) == 3:
            with workshop.sessions.begin() as session:
                jobs.set_state(session, job.job_id, state)  # type: ignore[arg-type]

    monkeypatch.setattr(job, "on_result", stop)
    workshop.run(job)

    assert (workshop.job(job.job_id).state, own_trials(workshop, job.job_id)) == (state, 3)
    workshop.run(private(workshop, "a", 24, trials_per_round=12))
    assert (workshop.job(job.job_id).state, own_trials(workshop, job.job_id)) == ("done", 24)
    assert len(order_of_jobs(workshop)) == 2


def test_what_waits_for_the_cores_has_them_during_a_long_round(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search or build of another job enters between two candidates, not after the last."""
    monkeypatch.setattr(round_measurement, "_MAX_HOLD_SECS", 0.0)
    job, gate = private(workshop, "a", 12, trials_per_round=12), workshop.context.cpu_gate
    on_result = job.on_result
    entered: list[int] = []
    waiting: list[asyncio.Future[None]] = []

    async def enter() -> None:
        async with gate.shared():
            entered.append(own_trials(workshop, job.job_id))

    def wait() -> None:
        on_result()
        if not waiting:
            waiting.append(asyncio.ensure_future(enter()))

    monkeypatch.setattr(job, "on_result", wait)
    workshop.run(job)

    assert len(entered) == 1
    assert entered[0] < own_trials(workshop, job.job_id) == 12


def test_a_command_notices_an_upgrade_and_writes_no_more(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker does: the run ends with an error, and what follows the upgrade is not stored."""
    database.watch_schema(workshop.sessions, 0.0)
    job = private(workshop, "a", 40)
    on_result, counts = job.on_result, []

    def upgrade() -> None:
        on_result()
        counts.append(own_trials(workshop, job.job_id))
        if len(counts) == 6:
            with workshop.sessions.kw["bind"].begin() as connection:
                connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    monkeypatch.setattr(job, "on_result", upgrade)
    with pytest.raises(SchemaTooNew):
        workshop.run(job)

    assert own_trials(workshop, job.job_id) == counts[5]
    assert workshop.job(job.job_id).state == "running"


def test_a_budget_that_is_raised_during_the_run_is_spent(workshop: Workshop) -> None:
    """Trials that are added in the middle of a job are made."""
    job = private(workshop, "a", 8)

    def extend(_: TuningStatus) -> None:
        with workshop.sessions.begin() as session:
            jobs.raise_budget(session, job.job_id, trials=16)

    job._publisher._on_status = extend
    workshop.run(job)

    assert own_trials(workshop, job.job_id) == 16


def test_a_job_that_is_admitted_later_gets_its_share(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new job is charged as much as the others: it neither waits for them nor displaces them."""
    # Jobs are charged by the seconds of their rounds, which a busy machine makes unequal.
    clock = iter(range(10**6))
    monkeypatch.setattr(workshop.context, "now", lambda: float(next(clock)))
    first, second = private(workshop, "a", 48), private(workshop, "b", 24)
    coordinator = Coordinator(workshop.context)

    def admit_second(_: TuningStatus) -> None:
        is_new = second.job_id not in coordinator.active_job_ids
        if is_new and own_trials(workshop, first.job_id) == 16:
            coordinator.admit(second)

    first._publisher._on_status = admit_second
    coordinator.run([first])

    order = order_of_jobs(workshop)
    joined = order.index(second.job_id)
    assert own_trials(workshop, first.job_id) == 48
    assert own_trials(workshop, second.job_id) == 24
    assert 3 <= order[joined : joined + 8].count(first.job_id) <= 5


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (WorkError("the search is broken"), "the search is broken"),
        (KeyError("x"), "internal error: KeyError: 'x'"),
    ],
)
def test_a_failing_job_does_not_end_the_others(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    """The job fails with its message, or one line about a defect, and the other job is done."""
    bad, good = private(workshop, "a", 40), private(workshop, "b", 8)

    def broken() -> bool:
        raise error

    monkeypatch.setattr(bad, "next_pick", broken)
    coordinator = workshop.run(bad, good)

    assert message.endswith(str(coordinator.failures[bad.job_id]))
    assert workshop.job(bad.job_id).state == "failed"
    assert workshop.job(bad.job_id).message == message
    assert workshop.job(good.job_id).state == "done"


@pytest.mark.parametrize("error", [LeaseLost("x"), OperationalError("", None, Exception())])
def test_a_lost_database_ends_the_run_and_no_job(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Neither job has failed, and both can be resumed."""
    pair = [private(workshop, name, 40) for name in ("a", "b")]

    def lost() -> bool:
        raise error

    monkeypatch.setattr(pair[0], "next_pick", lost)
    with pytest.raises(type(error)):
        workshop.run(*pair, state_on_interrupt="queued")

    assert [workshop.job(job.job_id).state for job in pair] == ["queued", "queued"]


def test_a_job_that_is_deleted_during_the_run_ends_alone(workshop: Workshop) -> None:
    """A deleted job, which was cancelled first, ends with its round; the other continues."""
    deleted, other = private(workshop, "a", 40), private(workshop, "b", 16)

    def delete(_: TuningStatus) -> None:
        with workshop.sessions.begin() as session:
            jobs.set_state(session, deleted.job_id, "cancelled")
            submissions.hide(session, deleted.job_id)

    deleted._publisher._on_status = delete
    workshop.run(deleted, other)

    assert workshop.job(deleted.job_id).state == "cancelled"
    assert workshop.job(other.job_id).state == "done"


def test_interrupted_coordinator_leaves_paused_jobs(workshop: Workshop) -> None:
    """Every active job can be resumed after an interrupt."""
    pair = [private(workshop, name, 80) for name in ("a", "b")]

    def interrupt(_: TuningStatus) -> None:
        if len(workshop.trials()) >= 8:
            raise KeyboardInterrupt

    pair[0]._publisher._on_status = interrupt
    with pytest.raises(KeyboardInterrupt):
        workshop.run(*pair)

    assert [workshop.job(job.job_id).state for job in pair] == ["paused", "paused"]


@pytest.mark.parametrize(("stop_below_ms", "spends_all"), [(1e-9, True), (1e6, False)])
def test_a_gain_below_the_threshold_stops_a_job(
    workshop: Workshop, stop_below_ms: float, spends_all: bool
) -> None:
    """A threshold above any gain ends the job after its warm-up; a tiny one changes nothing."""
    workshop.tune(workshop.prepare(), 24, trials_per_round=4, stop_below_ms=stop_below_ms)

    assert workshop.job().state == "done"
    assert (len(workshop.trials()) == 24) is spends_all


def test_a_job_stops_at_the_gain_that_was_requested_last(workshop: Workshop) -> None:
    """A smaller threshold, set during the run, keeps the job running."""
    job = private(workshop, "a", 24, stop_below_ms=1e6)

    def ask_again(_: TuningStatus) -> None:
        with workshop.sessions.begin() as session:
            session.get_one(Job, job.job_id).request = {"stop_below_ms": 1e-9}

    job._publisher._on_status = ask_again
    workshop.run(job)

    assert own_trials(workshop, job.job_id) == 24


@pytest.mark.parametrize("moment", ["_choose", "snapshot"])
def test_trials_that_are_added_at_the_very_end_are_made(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A budget may be raised at any time up to the last transaction of a job."""
    job = private(workshop, "a", 8)
    call: Callable[[], object] = getattr(job, moment)

    def raising() -> object:
        result = call()
        if own_trials(workshop, job.job_id) >= 8:
            with workshop.sessions.begin() as session:
                jobs.raise_budget(session, job.job_id, trials=16)
        return result

    monkeypatch.setattr(job, moment, raising)
    workshop.run(job)

    assert own_trials(workshop, job.job_id) == 16


@pytest.mark.parametrize("change", ["cancelled", "raised"])
def test_changes_during_the_confirmation_of_winners_count(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A job that is cancelled then is not done, and one whose budget is raised continues."""
    job = private(workshop, "a", 8)
    confirm: Callable[[Device], Awaitable[None]] = job._confirm_winners

    async def changed(device: Device) -> None:
        with workshop.sessions.begin() as session:
            if change == "cancelled":
                jobs.set_state(session, job.job_id, "cancelled")
            else:
                jobs.raise_budget(session, job.job_id, trials=16)
        await confirm(device)

    monkeypatch.setattr(job, "_confirm_winners", changed)
    workshop.run(job)

    expected = ("cancelled", 8) if change == "cancelled" else ("done", 16)
    assert (workshop.job(job.job_id).state, own_trials(workshop, job.job_id)) == expected


def test_a_job_is_charged_for_its_own_rounds_only(workshop: Workshop) -> None:
    """Seconds in which another job has the device do not count."""
    pair = [private(workshop, name, 16) for name in ("a", "b")]

    started = time.monotonic()
    workshop.run(*pair)

    charged = sum(workshop.job(job.job_id).spent_secs for job in pair)
    assert charged <= time.monotonic() - started


def test_finished_rounds_are_not_in_flight(workshop: Workshop) -> None:
    """On one device no round is in flight when the next task is chosen."""
    in_flight: list[int] = []

    def collect(status: TuningStatus) -> None:
        if status.phase == "choosing":
            in_flight.append(sum(status.snapshot.in_flight))

    job = workshop.session(workshop.prepare(), 24, collect, trials_per_round=4)
    workshop.run(job)

    assert set(in_flight) == {0}


@pytest.mark.parametrize("error", [OSError("no more files"), KeyError("x")])
def test_a_device_that_does_not_answer_is_asked_again(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The job waits for the device, whatever its error, and is done."""
    monkeypatch.setattr("tuner.devices.device._MIN_RETRY_SECS", 0.01)
    ask = Device.query
    errors = [error]

    async def broken(device: Device, target: TargetInfo) -> None:
        if errors:
            raise errors.pop()
        await ask(device, target)

    monkeypatch.setattr(Device, "query", broken)
    job = private(workshop, "a", 8)
    workshop.run(job)

    assert workshop.job(job.job_id).state == "done"


def test_a_job_that_is_stopped_while_it_waits_for_a_device_ends(
    workshop: Workshop, tmp_path: Path
) -> None:
    """A job need not have a device to be cancelled."""
    with LocalExecutor(Settings("", tmp_path / "none", toy.NAME, 1), runners=[]) as nothing:
        shop = Workshop(workshop.sessions, tmp_path, nothing)
        phases: list[str] = []

        def cancel(status: TuningStatus) -> None:
            phases.append(status.phase)
            with shop.sessions.begin() as session:
                jobs.set_state(session, 1, "cancelled")

        job = shop.session(shop.prepare(), 8, cancel)
        shop.run(job)

    assert phases == ["waiting for a device"]
    assert shop.job(job.job_id).state == "cancelled"


def test_a_job_that_is_stopped_ends_while_a_device_does_not_answer(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device whose answer does not come keeps no job alive."""
    asked: list[str] = []

    async def silent(device: Device, target: TargetInfo) -> None:
        asked.append(f"{device.name} {target.spec}")
        with workshop.sessions.begin() as session:
            jobs.set_state(session, 1, "cancelled")
        await asyncio.sleep(3600)

    monkeypatch.setattr(Device, "query", silent)
    job = private(workshop, "a", 8)
    workshop.run(job)

    assert len(asked) == 1
    assert workshop.job(job.job_id).state == "cancelled"


def test_a_job_that_starts_is_running_whatever_was_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row was read a moment ago, when it was queued."""
    monkeypatch.setattr(sessions_of_jobs, "_LIMITS_INTERVAL_SECS", 60.0)
    with on_two_devices(tmp_path) as workshop:
        job = private(workshop, "a", 8)

        async def work() -> None:
            workshop.context.task_states.job_standing(job.job_id, 60.0)
            await Coordinator(workshop.context).serve([job])

        event_loop.run(work())

        assert own_trials(workshop, job.job_id) == 8


def test_a_round_that_is_cancelled_before_it_begins_reserves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job fails in the same dispatch, and another job measures their common task."""
    with on_two_devices(tmp_path) as workshop:
        task = toy.make_task("common", weight=1, base_secs=1e-3)
        bad, good = (
            workshop.session(workshop.prepare(name, extracted=[task]), 8, trials_per_round=4)
            for name in ("a", "b")
        )
        choose, asked = bad.next_pick, count()

        def break_second() -> Pick | NewPick | None:
            if next(asked):
                raise WorkError("it is broken")
            return choose()

        monkeypatch.setattr(bad, "next_pick", break_second)
        failed, others = Coordinator(workshop.context), Coordinator(workshop.context)
        failed.run([bad])
        others.run([good])

        assert str(failed.failures[bad.job_id]) == "it is broken"
        assert own_trials(workshop, good.job_id) == 8


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_full_disk_that_the_service_does_not_watch_fails_the_job(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_watched: bool
) -> None:
    """The job waits for a disk of the service without limit, and fails for that of a node."""
    monkeypatch.setattr(disk_floor, "_FULL_SECS", 0.01)
    monkeypatch.setattr(disk_floor, "_CHECK_INTERVAL_SECS", 0.01)
    monkeypatch.setattr(DiskWatch, "has_room", not is_watched)
    measure, n_rounds = RoundMeasurement.measure, count(1)

    async def full(round_: RoundMeasurement, candidates: Sequence[Candidate]) -> None:
        if next(n_rounds) <= 6:
            raise DiskFull("cannot measure: No space left on device")
        await measure(round_, candidates)

    monkeypatch.setattr(RoundMeasurement, "measure", full)
    settings = Settings("", tmp_path, toy.NAME, 1, retention=RetentionSettings(min_free_disk=0))
    workshop.context.disk = DiskWatch(settings)
    job = private(workshop, "a", 8)

    failures = workshop.run(job).failures

    if is_watched:
        assert (failures, own_trials(workshop, job.job_id)) == ({}, 8)
    else:
        assert "a builder or a device has no disk space" in str(failures[job.job_id])
        assert next(n_rounds) == 4


def test_a_device_without_a_round_comes_before_a_second_round(tmp_path: Path) -> None:
    """Two tasks go to two devices, although each device may prepare a second round."""
    with on_two_devices(tmp_path) as workshop:
        workshop.run(private(workshop, "pair", 8))
        with workshop.sessions() as session:
            used = session.scalars(select(MeasureRecord.worker).distinct()).all()

    assert sorted(used) == ["a", "b"]


def test_jobs_that_start_together_divide_their_common_tasks(tmp_path: Path) -> None:
    """Jobs whose picks are stored together do not start a round on the same task."""
    with on_two_devices(tmp_path) as workshop:
        coordinator = Coordinator(workshop.context)
        coordinator.run([workshop.session(workshop.prepare(name), 24) for name in ("a", "b")])
        with workshop.sessions() as session:
            first = session.scalars(select(Pick).order_by(Pick.id).limit(2)).all()

    assert {pick.job_id for pick in first} == {1, 2}
    assert len({pick.task_id for pick in first}) == 2


@contextmanager
def on_two_devices(folder: Path) -> Iterator[Workshop]:
    """A workshop with two devices, which share no cores."""
    settings = Settings("", folder, toy.NAME, 2, worker_sandbox="off")
    devices = [LocalRunner(settings, name, shares_cores=False) for name in ("a", "b")]
    engine = database.open_database(f"sqlite:///{folder / 'tuner.db'}")
    with LocalExecutor(settings, runners=devices) as executor:
        yield Workshop(database.sessions(engine), folder, executor)
    engine.dispose()
