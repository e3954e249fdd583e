"""Calibration of one device for one target."""

from dataclasses import dataclass


@dataclass
class CalibrationState:
    """Last calibration of a device, and whether it gets rounds.

    Attributes:
        first_seen: Time at which it was first known to support the target, by the loop's clock.
        record_id: Newest record when it last agreed with the others.
        secs: Last time of the calibration kernel, seconds; inf if it failed, None if not timed.
        calibrated: Time of that calibration, by the loop's clock.
        is_thorough: True if it was then timed as often as keeping a device apart requires.
        is_calibrating: True while it is being timed, or waits to be.
        disagreement: Reason for which it is kept apart; empty if it agrees with the others.
        was_admitted: True once it got rounds.
        is_admitted: True while it gets rounds now.
    """

    first_seen: float
    record_id: int
    secs: float | None = None
    calibrated: float = 0.0
    is_thorough: bool = False
    is_calibrating: bool = False
    disagreement: str = ""
    was_admitted: bool = False
    is_admitted: bool = False
