"""Runs of candidates under the sanitizer of a device."""

from tuner.devices.device import Device
from tuner.engines.base import RunResult
from tuner.errors import WorkError
from tuner.measure.context import MeasureSetup, TaskUnderTest
from tuner.measure.round_builds import CandidateBuilder
from tuner.workers.base import CallTimeout

_TIMEOUT_SECS = 900.0


async def sanitize(
    setup: MeasureSetup, task: TaskUnderTest, trace: str, device: Device
) -> RunResult | None:
    """Run a trace under the sanitizer of a device.

    Returns:
        The error, or None if the sanitizer reports none.

    Raises:
        RequestError: If the device has no sanitizer.
        WorkError: If the sanitizer did not finish.
    """
    builder = CandidateBuilder(setup)
    (built,) = await builder.build_all(task, [trace])
    if isinstance(built, RunResult):
        return built
    try:
        async with device.exclusive(setup.context.cpu_gate, setup.target):
            verdicts = await device.runner.measure(
                "sanitize", built, setup.target, timeout_secs=_TIMEOUT_SECS
            )
    except CallTimeout as error:
        raise WorkError(f"the sanitizer took longer than {_TIMEOUT_SECS:g} s") from error
    finally:
        builder.discard([built])
    for verdict in verdicts:
        if verdict.n_errors is None:
            raise WorkError(f"{verdict.tool} did not finish: {verdict.text}")
    errors = [f"{verdict.tool}: {verdict.text}" for verdict in verdicts if not verdict.is_clean]
    return RunResult(error_kind="wrong_result", error_text="; ".join(errors)) if errors else None
