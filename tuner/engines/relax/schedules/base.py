"""The contract of schedules by rule, and the workloads that they are for."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tuner.engines.relax.graph.definitions import step_loops
from tuner.engines.relax.ir import workloads

#: Parallel jobs of each core.
JOBS_PER_CORE = 4

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
# Smaller kernels end before a second core has begun: about 10 us.
_MIN_PARALLEL_FLOP, _MIN_PARALLEL_BYTES = 1e6, 2**18
# Errors of TVM, for structures and shapes that a rule does not fit.
_MISFITS = (ScheduleError, RuntimeError, ValueError)


class Workload:
    """An unscheduled workload for a target.

    Args:
        target: Target of its schedules.
        make_spaces: Generator of TVM's design spaces for it.
    """

    def __init__(
        self,
        module: tvm.IRModule,
        target: Target,
        make_spaces: Callable[[], Sequence[Schedule]] = list,
    ) -> None:
        self.module = module
        self.target = target
        self._make_spaces = make_spaces

    @cached_property
    def spaces(self) -> Sequence[Schedule]:
        """TVM's design spaces, generated when a rule first asks for them."""
        return self._make_spaces()

    @cached_property
    def is_serial(self) -> bool:
        """True if it may not start threads."""
        return step_loops.is_serial(self.module)

    @cached_property
    def n_jobs(self) -> int:
        """Parallel jobs to cut it into for the cores of a CPU; 1 for none."""
        flop, n_bytes = workloads.flop_of(self.module), workloads.n_bytes_of(self.module)
        is_small = flop < _MIN_PARALLEL_FLOP and n_bytes < _MIN_PARALLEL_BYTES
        if self.is_serial or is_small:
            return 1
        return JOBS_PER_CORE * int(self.target.attrs.get("num-cores", 1))

    @property
    def n_cores(self) -> int:
        """Cores of a CPU that share it."""
        return max(self.n_jobs // JOBS_PER_CORE, 1)


class ScheduleRule(Protocol):
    """Schedules of one kind, which follow from the structure of a workload and its target."""

    def __call__(self, workload: Workload, match: Any, /) -> Iterable[Trace]:
        """Yield the schedules of a workload, the one that is estimated to be fastest first.

        Errors of TVM mean that the rule does not fit the workload.

        Args:
            match: Part of the workload that the rule is for, as its row of the table returns it.
        """


def attempts(
    workload: Workload, apply: Callable[..., None], tiles: Iterable[Any], **options: Any
) -> Iterator[Trace]:
    """Yield schedules that differ in their tiles, up to one that does not fit.

    Args:
        apply: Function that schedules it in place, given its unscheduled schedule and a tile. It
            raises an error of TVM if the structure is another; the schedule is then half done.
        **options: Further arguments of the function: ``lanes`` is the elements of a vector,
            ``n_jobs`` the parallel jobs to cut the workload into, 1 for none.
    """
    for tile in tiles:
        schedule = Schedule(workload.module)
        try:
            apply(schedule, tile, **options)
        except _MISFITS:
            return  # the structure does not fit, whatever the tile
        except Exception:
            _LOG.exception("a schedule by rule fails")
            continue
        yield schedule.trace


def guarded(results: Iterable[_T]) -> Iterator[_T]:
    """Return the results of a rule up to its first failure."""
    return iter(partial(_next, iter(results)), None)


def _next(results: Iterator[_T]) -> _T | None:
    """Return the next result; None behind the last one and after a failure.

    Generators do not yield inside of such a try: when the interpreter ends, those that are left
    would look up the errors, which are gone.
    """
    try:
        return next(results, None)
    except _MISFITS:
        return None
    except Exception:
        _LOG.exception("a kind of schedules by rule fails")
        return None
