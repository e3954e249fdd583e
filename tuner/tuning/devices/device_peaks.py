"""Peaks of a target's device, asked for once, for the roofs of all tasks on it."""

import logging
import math
from dataclasses import asdict
from typing import Any

from records import targets
from tuner.devices.device import Device
from tuner.engines.base import DevicePeaks, TargetInfo
from tuner.errors import DeviceLost, TunerError, WorkError
from tuner.tuning.context import TuningContext
from tuner.workers.base import CallTimeout

_TIMEOUT_SECS = 60.0
# Part of what is left of a budget in seconds that may be spent on them: trials need the rest.
_MAX_SHARE = 0.25
# Pause before the next attempt, compared with the duration of one that failed.
_PAUSE = 20.0

_LOG = logging.getLogger(__name__)


async def ensure_peaks(
    context: TuningContext, target: TargetInfo, target_id: int, device: Device, secs_left: float
) -> None:
    """Store the peaks of the CPU of this machine or of a GPU, unless they are known.

    They are measured before the first round; if that fails because other processes use the cores,
    or takes longer than a quarter of ``secs_left``, again after twenty times as long as it took.
    Without peaks, as for GPUs without known clocks and CPUs of other machines, the roofs of the
    tasks are unknown.

    Raises:
        DeviceLost: If the device was lost.
    """
    has_peaks = device.runner.shares_cores or "max_sm_mhz" in target.device
    if target_id in context.targets_with_peaks or not has_peaks:
        return
    started = context.now()
    if started < context.peaks_wait_until.get(target_id, started):
        return
    with context.sessions() as session:
        if targets.peaks_of(session, target_id) is not None:
            context.targets_with_peaks.add(target_id)
            return
    try:
        async with device.exclusive(context.cpu_gate):
            answer = await device.runner.measure(
                "measure_peaks",
                target.spec,
                timeout_secs=min(_TIMEOUT_SECS, _MAX_SHARE * secs_left),
            )
        peaks = _validate(answer)
    except DeviceLost:
        raise
    except (CallTimeout, TunerError, OSError) as error:
        _LOG.info("the peaks of %s are unknown: %s", device.name, error)
        ended = context.now()
        context.peaks_wait_until[target_id] = ended + _PAUSE * (ended - started)
        return
    with context.sessions.begin() as session:
        targets.store_peaks(session, target_id, peaks)
    context.targets_with_peaks.add(target_id)
    context.task_states.reload()


def _validate(answer: Any) -> dict[str, Any]:
    """Return peaks, if they are what a worker should return, for the database.

    Raises:
        WorkError: If they are not.
    """
    if not isinstance(answer, DevicePeaks):
        raise WorkError(f"the worker returned {answer!r:.200}")
    peaks = asdict(answer)
    others = [peaks[name] for name in peaks if name != "flops" and peaks[name] is not None]
    numbers = [*peaks["flops"].values(), *others]
    if not all(isinstance(number, int | float) and 0 < number < math.inf for number in numbers):
        raise WorkError(f"peaks are not positive numbers: {answer!r:.200}")
    return peaks
