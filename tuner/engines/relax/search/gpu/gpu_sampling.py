"""First candidates for a GPU, and mutations of them, that fit the limits of the device."""

from itertools import cycle
from random import Random
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.mutator import (
    MutateThreadBinding,
    MutateTileSize,
    MutateUnroll,
    Mutator,
    PyMutator,
)
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tuner.engines.relax.search.gpu.gpu_resources import Limits, Plan

# Attempts to find a mutation that fits.
_MAX_MUTATIONS = 32
_MAX_SEED = 2**30


def sample(
    spaces: list[Schedule], module: tvm.IRModule, target: Target, n: int, seed: int
) -> list[Trace]:
    """Draw traces from the spaces in turns; return fewer than ``n`` if too few fit.

    Tensor cores have more turns: their shared memory is not predicted, and TVM's check keeps
    about a third of their traces, and nearly all of the others.
    """
    random, limits = Random(seed), Limits(module, target)
    plans = [(space.trace, Plan(space.trace, limits)) for space in spaces]
    drawn = [
        (trace, plan.draw(random)) for (trace, plan), _ in zip(cycle(plans), range(n), strict=False)
    ]
    return [Trace(trace.insts, decisions) for trace, decisions in drawn if decisions is not None]


def mutators(module: tvm.IRModule, target: Target, seed: int) -> dict[Mutator, float]:
    """Return TVM's mutators for GPUs with their probabilities (mutator.cc, ``DefaultCUDA``)."""
    limits, random = Limits(module, target), Random(seed)
    chances = {MutateTileSize(): 0.9, MutateUnroll(): 0.08, MutateThreadBinding(): 0.02}
    return {_Fitting(mutator, limits, random): chance for mutator, chance in chances.items()}


@derived_object
class _Fitting(PyMutator):  # type: ignore[misc]  # TVM has no types
    """Mutator that repeats until the decisions fit the device."""

    def __init__(self, mutator: Mutator, limits: Limits, random: Random) -> None:
        super().__init__()
        self.mutator = mutator
        self.limits = limits
        self.random = random

    def _initialize_with_tune_context(self, context: Any) -> None:
        self.mutator._initialize_with_tune_context(context)

    def apply(self, trace: Trace, _seed: Any) -> Trace | None:
        """Return a mutated trace that fits, or None."""
        for _ in range(_MAX_MUTATIONS):
            # Called through its class, TVM would seed from the time of day.
            seed = self.random.randrange(1, _MAX_SEED)
            mutated = _ffi_api.MutatorApply(self.mutator, trace, seed)
            if mutated is None:
                return None
            if Plan(mutated, self.limits).fits(dict(mutated.decisions.items())):
                return mutated
        return None

    def clone(self) -> Mutator:
        """Return itself: a search has one thread and shares the generator."""
        return _Fitting(self.mutator, self.limits, self.random)
