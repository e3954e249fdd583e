"""Kernel that the devices of a target are compared by: built once, timed on each of them."""

import asyncio
import hashlib
import logging
import math

from tuner.devices.device import Device
from tuner.engines.base import EvaluatorSettings, RunResult, TargetInfo
from tuner.errors import DeviceLost, TunerError, WorkError
from tuner.measure.context import MeasureContext, MeasureSetup, TaskUnderTest
from tuner.measure.round_builds import CandidateBuilder
from tuner.measure.round_measurement import run_artifact
from tuner.workers.base import CallTimeout

# The time-out leaves room for the start of a runner's process.
_EVALUATOR = EvaluatorSettings(repeat=10, min_repeat_ms=0, timeout_secs=60.0)
_BUILD_TIMEOUT_SECS = 120.0

_LOG = logging.getLogger(__name__)


class CalibrationKernel:
    """Calibration kernel of the engine; see :attr:`tuner.engines.base.Engine.calibration_kernel`.

    Attributes:
        name: Hash of its IR, 16 hexadecimal digits; empty before it is built.
    """

    def __init__(self, context: MeasureContext, target: TargetInfo) -> None:
        self.name = ""
        self._context = context
        self._setup = MeasureSetup(context, target.spec, _EVALUATOR, _BUILD_TIMEOUT_SECS)
        self._builder = CandidateBuilder(self._setup)
        self._building = asyncio.Lock()
        self._artifact: str | None = None

    async def artifact(self) -> str | None:
        """Return the artifact, building it if needed; None if that failed this time."""
        async with self._building:
            if self._artifact is None:
                try:
                    async with self._context.cpu_gate.shared():
                        ir = await self._context.executor.submit(
                            "calibration_kernel",
                            self._setup.target,
                            timeout_secs=_BUILD_TIMEOUT_SECS,
                        )
                    if not isinstance(ir, bytes):
                        raise WorkError(f"the worker returned {ir!r:.200}")
                    self.name = hashlib.sha256(ir).hexdigest()[:16]
                    (built,) = await self._builder.build_all(TaskUnderTest(0, self.name, ir), [""])
                    if isinstance(built, RunResult):
                        raise WorkError(built.error_text)
                    self._artifact = built
                except (TunerError, CallTimeout) as error:
                    spec = self._setup.target
                    _LOG.warning("cannot build the calibration kernel for %s: %s", spec, error)
            return self._artifact

    async def time(self, artifact: str, device: Device) -> float:
        """Time the kernel on a device, once no round uses it.

        Returns:
            Shortest sample, seconds, because interference only slows a device down; inf if the
            kernel fails.

        Raises:
            DeviceLost: If the device was lost.
        """
        try:
            async with device.exclusive(self._context.cpu_gate):
                result = await run_artifact(self._setup, artifact, device, (), math.inf)
        except DeviceLost:
            raise
        except WorkError as error:
            result = RunResult(error_kind="run_error", error_text=str(error))
        if result.run_secs is not None:
            return min(result.run_secs)
        _LOG.warning("the calibration kernel fails on %s: %s", device.name, result.error_text)
        if self._artifact is not None:
            self._builder.discard([self._artifact])
            self._artifact = None
        return math.inf
