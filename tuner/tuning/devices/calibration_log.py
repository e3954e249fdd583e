"""Calibrations in the database, written in order with the records they concern."""

from sqlalchemy.orm import Session

from records import measure_records
from records.tuning import calibrations, drift
from records.tuning.calibrations import NewCalibration
from tuner.devices.calibration.calibrator import CalibrationSettings, Calibrator, Start
from tuner.devices.calibration.state import CalibrationState
from tuner.measure.calibration_kernel import CalibrationKernel
from tuner.tuning.context import TuningContext
from tuner.tuning.devices.device_heartbeat import full_name, host_of


def make_calibrator(
    context: TuningContext, settings: CalibrationSettings, start: Start
) -> Calibrator:
    """Return a calibrator of the devices of a coordinator."""
    return Calibrator(
        context,
        DatabaseCalibrationLog(context),
        lambda target: CalibrationKernel(context.measure_context, target),
        settings,
        start,
    )


class DatabaseCalibrationLog:
    """Calibration log that goes through the record writer of a coordinator."""

    def __init__(self, context: TuningContext) -> None:
        self._context = context

    def newest_record(self) -> int:
        """Return the id of the newest record."""
        with self._context.sessions() as session:
            return measure_records.newest_id(session)

    def add(self, device: str, target_id: int, kernel: str, secs: float) -> None:
        """Store a calibration."""
        calibration = NewCalibration(full_name(device), host_of(device), target_id, kernel, secs)
        self._context.record_writer.write(lambda session: calibrations.add(session, calibration))

    def mark_agreement(self, state: CalibrationState) -> None:
        """Set the newest record of a state."""

        def set_newest(session: Session) -> None:
            state.record_id = measure_records.newest_id(session)

        self._context.record_writer.write(set_newest)

    def mark_drift(self, device: str, newer_than: int, ratio: float) -> None:
        """Mark the records of a device, and reload the best records that this may change."""
        job_ids = self._context.task_states.job_ids
        self._context.record_writer.write(
            lambda session: drift.mark(session, job_ids, device, newer_than, round(ratio, 3))
        )
        if ratio < 1.0:
            # Records of a device that was too fast lose; a reload flushes the mark first.
            self._context.task_states.reload()
