"""Programs that the sources of a search offer."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.schedule import Trace

from tuner.engines.relax.ir import workloads

_LOG = logging.getLogger(__name__)
# Programs among which one is drawn.
_WINDOW = 2


@dataclass(frozen=True, eq=False)
class Program:
    """A scheduled program.

    Attributes:
        schedule: Schedule after post-processing.
        origin: Source that offers it, and the name of its rule or variant behind a colon.
        variant: Name of its variant in traces; empty for the workload itself.
    """

    schedule: Schedule
    origin: str
    variant: str = ""

    @cached_property
    def module_hash(self) -> str:
        """Hash of the program."""
        return workloads.hash_of(self.schedule.mod)


def draw_first(programs: Iterable[Program], known: set[str], n: int, seed: int) -> list[Program]:
    """Return programs that are not known: the first, and draws of the next few.

    Args:
        programs: Programs, the likeliest first.
        known: Hashes of the programs that are not to be drawn.
    """
    window = fresh(programs, known, _WINDOW * n)
    first, others = window[:1], window[1:]
    Random(seed).shuffle(others)
    return [*first, *others][:n]


def fresh(programs: Iterable[Program], known: set[str], n: int) -> list[Program]:
    """Return the first ``n`` different programs that are not known."""
    seen = set(known)
    picked: list[Program] = []
    for program in programs if n else ():
        if program.module_hash not in seen:
            seen.add(program.module_hash)
            picked.append(program)
        if len(picked) >= n:
            break
    return picked


def applied(context: TuneContext, traces: Iterable[tuple[str, Trace]]) -> Iterator[Program]:
    """Yield the programs of those traces that are valid; of equal traces, that of the first.

    Args:
        context: Initialised context, whose post-processors decide which programs are valid.
        traces: Traces, each behind its origin.
    """
    texts: set[str] = set()
    for origin, trace in traces:
        if (text := str(trace)) in texts:
            continue
        texts.add(text)
        try:
            schedule = apply(context, trace, seed=1)
        except Exception:
            _LOG.exception("a trace fails, the others are applied")
            continue
        if schedule is not None:
            yield Program(schedule, origin)


def apply(context: TuneContext, trace: Trace, seed: int) -> Schedule | None:
    """Apply and post-process a trace; None if it is not valid."""
    schedule = Schedule(context.mod, seed=seed)
    try:
        trace.apply_to_schedule(schedule, remove_postproc=True)
        schedule.enter_postproc()
        is_valid = all(processor.apply(schedule) for processor in context.space_generator.postprocs)
    except (ValueError, RuntimeError, tvm.error.InternalError):
        return None
    return schedule if is_valid else None
