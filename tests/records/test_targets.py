"""Targets are identified by spec and device."""

from sqlalchemy.orm import Session

from records import measure_records, targets
from records.models import Target
from tests.records import make


def test_ensure_target_ignores_the_order_of_keys(session: Session) -> None:
    """A device with its keys in another order is the same target."""
    first = targets.ensure_target(session, "{}", {"a": 1, "b": 2})

    again = targets.ensure_target(session, "{}", {"b": 2, "a": 1})

    assert again.id == first.id
    assert first.fingerprint == targets.fingerprint("{}", {"a": 1, "b": 2})


def test_another_device_is_another_target(session: Session) -> None:
    """A new driver version is a new target."""
    ids = {targets.ensure_target(session, "{}", {"driver": n}).id for n in ("1", "2")}

    assert len(ids) == 2


def test_the_first_time_of_the_clock_kernel_is_the_reference(session: Session) -> None:
    """Every later one refers to it."""
    target_id = targets.ensure_target(session, "{}", {"driver": "1"}).id

    references = [targets.clock_reference(session, target_id, secs) for secs in (2.0, 2.5, 1.6)]

    assert references == [2.0, 2.0, 2.0]


def test_only_settings_of_jobs_with_trials_are_returned(session: Session) -> None:
    """Equal settings appear once; jobs without trials or settings do not count."""
    task_id = make.task(session)
    for seed, number in enumerate((1, 1, 2, 7, None)):
        settings = {} if number is None else {"evaluator": {"number": number, "cache_flush": True}}
        job_id = make.job(session, seed, settings=settings)
        pick = make.pick(session, job_id, task_id, 8)
        if number != 7:
            record = make.timed(task_id, f"t{seed}", 1.0, pick_id=pick.id)
            measure_records.add_record(session, record)

    numbers = [each["number"] for each in targets.evaluators(session, make.target(session))]

    assert sorted(numbers) == [1, 2]
    assert targets.evaluators(session, make.target(session, 5)) == []


def test_a_target_that_is_set_apart_frees_its_fingerprint(session: Session) -> None:
    """The same target is another row afterwards; several can be set apart."""
    first = make.target(session)
    targets.set_apart(session, first, {"number": 2})
    second = make.target(session)
    targets.set_apart(session, second, {"number": 2})

    assert len({first, second, make.target(session)}) == 3
    assert session.get_one(Target, first).device["timed_with"] == {"number": 2}


def test_a_device_without_a_name_has_that_of_its_target() -> None:
    """The kind and the fingerprint tell it from others."""
    spec = '{"kind":"cuda"}'

    assert targets.device_name(spec, {"name": "NVIDIA Test"}) == "NVIDIA Test"
    assert targets.device_name(spec, {}) == f"cuda device {targets.fingerprint(spec, {})[:8]}"
    assert targets.device_name("[]", {"name": ""}).startswith("unknown device ")
