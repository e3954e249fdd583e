"""Candidates of the variants of a workload, which share a round with the search of the workload.

A variant has a list of schedules by rule, the likeliest first. Which of them are proposed follows
from those that were measured; each island also draws from the next few, so that islands differ.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import tvm
from tvm.s_tir import ScheduleError
from tvm.target import Target

from scheduler.forecasts.rivals import Rival, divide_round
from tuner.engines.base import SearchRequest, variant_of
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.schedules import catalogue
from tuner.engines.relax.schedules.variants.base import Variant
from tuner.engines.relax.search import programs
from tuner.engines.relax.search.programs import Program
from tuner.engines.relax.search.spaces import space_of
from tuner.engines.relax.target.kinds import is_cuda
from tuner.engines.relax.target.targets import make_target

# More than any round asks of the search of the workload itself.
_ENDLESS = 2**30


@dataclass
class VariantSpace:
    """The schedules of a variant, made when they are needed.

    Attributes:
        choices: Decisions of each schedule.
    """

    variant: Variant
    program: tvm.IRModule
    target: Target
    choices: list[Any]
    _programs: dict[int, Program | None] = field(default_factory=dict)

    def fresh(self, known: set[str], n: int, seed: int) -> list[Program]:
        """Return programs that are not known; the first of them, and draws of the next.

        Args:
            known: Hashes of programs.
        """
        made = (self._make(number) for number in range(len(self.choices)))
        return programs.draw_first((each for each in made if each is not None), known, n, seed)

    def _make(self, number: int) -> Program | None:
        """Return the program of a choice; None if TVM refuses it."""
        if number not in self._programs:
            self._programs[number] = None
            with suppress(ScheduleError, ValueError, RuntimeError):
                schedule = self.variant.schedule(self.program, self.target, self.choices[number])
                name = self.variant.name_of(schedule)
                self._programs[number] = Program(schedule, f"variants:{name}", name)
        return self._programs[number]


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
    latencies: dict[str, list[float]] = {name: [] for name in ("", *spaces)}
    for measured in request.measured:
        name = catalogue.family_of(variant_of(measured.trace))
        if name in latencies:
            latency = measured.latency
            latencies[name].append(float("inf") if latency is None else latency)
    if is_cuda(make_target(request.target)):
        own = latencies.pop("")
        is_left = any(len(each.choices) > len(latencies[name]) for name, each in spaces.items())
        # Programs of TVM's rules come last: they took 5 to 700 times as long on an H200.
        if not is_left and space_of(request.ir, request.target).schedules:
            latencies[""] = own
    n_left = {name: len(space.choices) - len(latencies[name]) for name, space in spaces.items()}
    module = workloads.load(request.ir)
    flop = {name: space.variant.flop(module) for name, space in spaces.items()}
    flop[""] = workloads.flop_of(module)
    rivals = [
        Rival(
            latencies[name],
            max(n_left.get(name, _ENDLESS), 0),
            flop[name] / request.peak_flops if request.peak_flops else 0.0,
        )
        for name in latencies
    ]
    shares = zip(latencies, divide_round(rivals, request.n_candidates), strict=True)
    return {"": 0, **dict(shares)}
