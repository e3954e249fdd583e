"""The choice among the schedules of the catalogue: for searches, and for what has no record."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tuner.engines.relax.ir import traces
from tuner.engines.relax.schedules import catalogue
from tuner.engines.relax.schedules.base import ScheduleRule, Workload, guarded

# Estimated gain from which a variant is used without a measurement.
_MIN_GAIN = 1.2

Named = tuple[str, Trace]


def describe(
    module: tvm.IRModule, target: Target, spaces: Sequence[Schedule] | None = None
) -> Workload:
    """Return a workload for the rules.

    Args:
        module: Unscheduled workload.
        target: Target of its schedules.
        spaces: Its design spaces, if they were generated before.
    """
    if spaces is not None:
        return Workload(module, target, lambda: spaces)
    return Workload(module, target, partial(traces.design_spaces, module, target, PostOrderApply()))


def ranked(workload: Workload, *, is_closed: bool = False) -> Iterator[Named]:
    """Yield the schedules by rule of a workload with the name of their rule, the likeliest first.

    Those of a product differ in their tiles; others have one schedule, or none.

    Args:
        is_closed: True for the rules whose workloads have no other schedules.
    """
    for row in catalogue.RULES[str(workload.target.kind.name)]:
        if row.is_closed is is_closed:
            schedules = guarded(_schedules(row, workload))
            for first in schedules:
                yield first
                yield from schedules
                return


def _schedules(row: catalogue.Row, workload: Workload) -> Iterator[Named]:
    """Yield the schedules of a row; a failure of a rule ends this rule alone."""
    match = row.match(workload)
    if match is not None and row.pays(workload, match):
        kinds = [_named(*each, workload, match) for each in row.rules.items()]
        while kinds:
            left = []
            for kind in kinds:
                for schedule in itertools.islice(kind, 1):
                    yield schedule
                    left.append(kind)
            kinds = left


def _named(name: str, rule: ScheduleRule, workload: Workload, match: Any) -> Iterator[Named]:
    def schedules() -> Iterator[Named]:
        yield from ((name, trace) for trace in rule(workload, match))

    return guarded(schedules())


def compute_trace(module: tvm.IRModule, target: Target) -> str:
    """Return the likeliest schedule by rule in the JSON of a trace; empty if no rule fits.

    Args:
        module: Unscheduled workload.
        target: Target for a CPU.
    """
    workload = describe(module, target)
    likeliest = itertools.chain(ranked(workload, is_closed=True), ranked(workload))
    return next((traces.dump(trace) for _, trace in likeliest), "")


def compute_variant(module: tvm.IRModule, target: Target) -> str:
    """Return the likeliest trace of a variant that is estimated to be much faster; else empty.

    Args:
        module: Unscheduled workload.
        target: Target of its schedules.
    """
    programs = catalogue.fitting(module, target)
    gains = {variant: variant.gain(program, target) for variant, program in programs.items()}
    variant = max(gains, key=gains.__getitem__, default=None)
    if variant is None or gains[variant] < _MIN_GAIN:
        return ""
    program = programs[variant]
    try:
        schedule = variant.schedule(program, target, variant.choices(program, target)[0])
    except (ScheduleError, ValueError, RuntimeError):
        return ""
    return traces.dump(schedule.trace, variant.name_of(schedule))
