"""Calibrations compare devices by one kernel."""

from datetime import timedelta

from sqlalchemy import update
from sqlalchemy.orm import Session

from records.models import now
from records.service.service_models import Calibration
from records.tuning import calibrations
from tests.records import make


def _add(session: Session, device: str, *secs: float, **changes: object) -> None:
    fields: dict[str, object] = {"target_id": make.target(session), "kernel": "k1", "host": "h"}
    for one in secs:
        new = calibrations.NewCalibration(**{"device": device, "secs": one, **fields, **changes})  # type: ignore[arg-type]
        calibrations.add(session, new)


def test_latest_is_the_last_calibration_of_each_device(session: Session) -> None:
    """Calibrations of other targets do not count."""
    _add(session, "a", 1.0, 1.1)
    _add(session, "b", 2.0)
    _add(session, "c", 3.0, target_id=make.target(session, 64))

    assert calibrations.latest(session, make.target(session)) == {"a": 1.1, "b": 2.0}
    assert calibrations.latest(session, 99) == {}


def test_old_calibrations_are_removed(session: Session) -> None:
    """Recent calibrations stay."""
    _add(session, "a", 1.0)
    session.execute(update(Calibration).values(created=now() - timedelta(days=40)))
    _add(session, "b", 2.0)

    calibrations.forget(session, timedelta(days=30))

    assert calibrations.latest(session, make.target(session)) == {"b": 2.0}


def test_another_kernel_starts_a_new_comparison(session: Session) -> None:
    """Calibrations of the previous kernel no longer count."""
    _add(session, "a", 1.0)
    _add(session, "b", 1.0)
    _add(session, "b", 5.0, kernel="k2")
    target_id = make.target(session)

    assert calibrations.latest(session, target_id) == {"b": 5.0}
