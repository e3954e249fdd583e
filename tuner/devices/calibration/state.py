"""Calibration of one device for one target, and devices that disagree with the others."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Disagreement:
    """Deviation of a device from the largest group that agrees.

    Attributes:
        ratio: Its time divided by that of the nearest of them; inf if it could not be timed.
        reason: Description for people.
    """

    ratio: float
    reason: str


def find_disagreements(secs: Mapping[str, float], tolerance: float) -> dict[str, Disagreement]:
    """Compare devices with the largest group of them that agrees within a tolerance.

    Ties go to the faster group, because interference only slows devices down.

    Args:
        secs: Time of the kernel, seconds, by device; inf if it could not be timed.
        tolerance: Share by which the slowest of a group may exceed the fastest.

    Returns:
        The devices outside the group, by name; empty if no device could be timed.
    """
    timed = sorted((took, name) for name, took in secs.items() if math.isfinite(took))
    if not timed:
        return {}
    group = timed[_largest_group([took for took, _ in timed], tolerance)]
    agreeing = {name for _, name in group}
    return {
        name: _disagreement(took, group[0] if took > group[0][0] else group[-1])
        for name, took in secs.items()
        if name not in agreeing
    }


def _largest_group(ordered: list[float], tolerance: float) -> slice:
    best, begin = slice(0, 0), 0
    for end, took in enumerate(ordered, 1):
        while took > ordered[begin] * (1.0 + tolerance):
            begin += 1
        if end - begin > best.stop - best.start:
            best = slice(begin, end)
    return best


def _in_ms(secs: float) -> str:
    return f"{1e3 * secs:.3g}" if secs < 0.9995 else f"{1e3 * secs:.0f}"


def _disagreement(took: float, nearest: tuple[float, str]) -> Disagreement:
    expected, name = nearest
    if math.isinf(took):
        return Disagreement(math.inf, f"the calibration kernel fails here and not on {name}")
    ratio = took / expected
    share = ratio - 1.0 if ratio > 1.0 else 1.0 - ratio
    word = "slower" if ratio > 1.0 else "faster"
    compared = f"{_in_ms(took)} against {_in_ms(expected)} ms"
    return Disagreement(ratio, f"{100 * share:.0f} % {word} than {name} (calibration {compared})")


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
