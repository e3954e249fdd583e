"""Targets of the lines of a log, compared with the requested one."""

from typing import cast

from tuner.engines.base import TargetInfo
from tuner.errors import TargetError, WorkError
from tuner.tuning_logs.base import BadLine
from tuner.workers.base import CallTimeout
from tuner.workers.pool import Pool

_TIMEOUT_SECS = 120.0


class Targets:
    """The targets of a log, each read by the engine once.

    Args:
        engine: Module that reads targets.
        pool: Worker processes with the engine.
        here: The requested target.
        foreign: True to accept other targets.

    Attributes:
        refused: The first target that was refused; empty if none was.
        n_refused: Number of lines with refused targets.
    """

    def __init__(self, engine: str, pool: Pool, here: TargetInfo, *, foreign: bool) -> None:
        self._engine = engine
        self._pool = pool
        self._here = here
        self._foreign = foreign
        self._results: dict[str, tuple[str, str]] = {}
        self.refused = ""
        self.n_refused = 0

    def find(self, text: str) -> str:
        """Return the canonical JSON of a target in the notation of the log.

        Raises:
            BadLine: If it cannot be read, or is not the requested one.
        """
        if text not in self._results:
            self._results[text] = self._read(text)
        spec, problem = self._results[text]
        if problem:
            raise BadLine(problem)
        if spec != self._here.spec and not self._foreign:
            self.refused = self.refused or spec
            self.n_refused += 1
            raise BadLine(
                f"it is for target {spec}, not for {self._here.spec}: include foreign records"
            )
        return spec

    def is_here(self, spec: str) -> bool:
        """Return whether a target is the requested one."""
        return spec == self._here.spec

    def _read(self, text: str) -> tuple[str, str]:
        """Return the canonical target and an empty problem, or an empty target and the problem."""
        try:
            spec = self._pool.call(self._engine, "read_target", text, timeout_secs=_TIMEOUT_SECS)
        except (TargetError, WorkError, CallTimeout) as error:
            return "", f"its target cannot be used: {error}"
        return cast("str", spec), ""
