"""Which target a line of a log is of, and whether that was asked for."""

from typing import cast

from tuner.engines.base import TargetInfo
from tuner.errors import TargetError, WorkError
from tuner.tuning_logs.base import BadLine
from tuner.workers.base import CallTimeout
from tuner.workers.pool import Pool

_TIMEOUT_SECS = 120.0


class Targets:
    """The targets of a log, each asked for once.

    Args:
        engine: The module that reads them.
        pool: Where it does.
        here: The target that was asked for.
        foreign: Whether others will do.

    Attributes:
        refused: A target that was not asked for; empty if none came.
        n_refused: How often one came.
    """

    def __init__(self, engine: str, pool: Pool, here: TargetInfo, *, foreign: bool) -> None:
        self._engine = engine
        self._pool = pool
        self._here = here
        self._foreign = foreign
        self._found: dict[str, tuple[str, str]] = {}
        self.refused = ""
        self.n_refused = 0

    def find(self, text: str) -> str:
        """Return the canonical JSON of a target as a log writes it.

        Raises:
            BadLine: If it is none, or was not asked for.
        """
        if text not in self._found:
            self._found[text] = self._ask(text)
        spec, problem = self._found[text]
        if problem:
            raise BadLine(problem)
        if spec != self._here.spec and not self._foreign:
            self.refused = self.refused or spec
            self.n_refused += 1
            raise BadLine(f"it is of target {spec}, not of {self._here.spec}: --foreign takes it")
        return spec

    def is_here(self, spec: str) -> bool:
        """Return whether a target is the one that was asked for."""
        return spec == self._here.spec

    def _ask(self, text: str) -> tuple[str, str]:
        """Return a target, or why there is none."""
        try:
            asked = self._pool.call(self._engine, "read_target", text, timeout_secs=_TIMEOUT_SECS)
        except (TargetError, WorkError, CallTimeout) as error:
            return "", f"its target cannot be used: {error}"
        return cast("str", asked), ""
