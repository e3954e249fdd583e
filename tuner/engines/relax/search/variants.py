"""Candidates of the variants of a workload, which share a round with the search of the workload.

A variant has a list of schedules by rule, the likeliest first. Which of them are proposed follows
from those that were measured; each island also draws from the next few, so that islands differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.target import Target

from scheduler.rivals import Rival, divide_round
from tuner.engines.base import SearchRequest, variant_of
from tuner.engines.relax import workloads
from tuner.engines.relax.kinds import is_cuda
from tuner.engines.relax.schedules import catalogue
from tuner.engines.relax.schedules.variants.base import Variant
from tuner.engines.relax.targets import make_target

# Schedules among which a candidate is drawn.
_WINDOW = 2
# More than any round asks of the search of the workload itself.
_ENDLESS = 2**30


@dataclass
class VariantSpace:
    """The schedules of a variant, made when they are needed.

    Attributes:
        variant: The variant.
        program: Its program.
        target: Target of the schedules.
        choices: Decisions of each schedule.
    """

    variant: Variant
    program: tvm.IRModule
    target: Target
    choices: list[Any]
    _schedules: dict[int, tuple[str, Schedule] | None] = field(default_factory=dict)

    def fresh(self, known: set[str], n: int, seed: int) -> list[Schedule]:
        """Return schedules whose programs are not known; the first of them, and draws of the next.

        Args:
            known: Hashes of programs.
            n: Number of schedules.
            seed: Seed of the draws.
        """
        window: list[Schedule] = []
        for number in range(len(self.choices)):
            if len(window) >= _WINDOW * n:
                break
            made = self._make(number)
            if made is not None and made[0] not in known:
                window.append(made[1])
        first, others = window[: n and 1], window[1:]
        Random(seed).shuffle(others)
        return [*first, *others][:n]

    def _make(self, number: int) -> tuple[str, Schedule] | None:
        """Return a schedule with the hash of its program; None if TVM refuses it."""
        if number not in self._schedules:
            try:
                schedule = self.variant.schedule(self.program, self.target, self.choices[number])
                self._schedules[number] = (workloads.hash_of(schedule.mod), schedule)
            except (ScheduleError, ValueError, RuntimeError):
                self._schedules[number] = None
        return self._schedules[number]


@lru_cache(maxsize=64)
def spaces_of(ir: bytes, spec: str) -> Mapping[str, VariantSpace]:
    """Return the spaces of the variants that fit a workload, by name."""
    module, target = workloads.load(ir), make_target(spec)
    return {
        variant.name: VariantSpace(variant, program, target, list(variant.choices(program, target)))
        for variant, program in catalogue.fitting(module, target).items()
    }


def divide(request: SearchRequest, spaces: Mapping[str, VariantSpace]) -> dict[str, int]:
    """Divide a round among the workload itself, whose name is empty, and its variants."""
    if not spaces:
        return {"": request.n_candidates}
    # The first leads until something ran.
    names = (*spaces, "") if is_cuda(make_target(request.target)) else ("", *spaces)
    latencies: dict[str, list[float]] = {name: [] for name in names}
    for measured in request.measured:
        name = catalogue.family_of(variant_of(measured.trace))
        if name in latencies:
            latency = measured.latency
            latencies[name].append(float("inf") if latency is None else latency)
    n_left = {name: len(space.choices) - len(latencies[name]) for name, space in spaces.items()}
    flop = _flop(request.ir, spaces)
    rivals = [
        Rival(
            latencies[name],
            max(n_left.get(name, _ENDLESS), 0),
            flop[name] / request.peak_flops if request.peak_flops else 0.0,
        )
        for name in latencies
    ]
    return dict(zip(latencies, divide_round(rivals, request.n_candidates), strict=True))


def _flop(ir: bytes, spaces: Mapping[str, VariantSpace]) -> dict[str, float]:
    module = workloads.load(ir)
    flop = {name: space.variant.flop(module) for name, space in spaces.items()}
    return {"": workloads.flop_of(module), **flop}
