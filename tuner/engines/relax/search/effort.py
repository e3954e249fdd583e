"""Effort of the search of a workload: how many programs it applies, by what one of them costs.

The bounds count programs, not seconds, so that a round remains a pure function of its request.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.search import mutants

if TYPE_CHECKING:
    from tvm.s_tir.schedule import Trace

# Nodes of a program up to which it costs TVM some 25 ms at most to apply and to analyse. Beyond,
# the time grows with the square: 0.6 s for the 9,400 nodes of a concatenation of 40 tensors.
_MAX_NODES = 2400
# Mutants that are tried of a closed space: they differ in the number of parallel loops.
_N_MUTANTS = 8


def share(spaces: Sequence[Schedule]) -> float:
    """Return the share of the usual number of programs that a search applies: 1 for most.

    Args:
        spaces: Design spaces of a workload, whose first stands for all.
    """
    if not spaces:
        return 1.0
    return min(1.0, (_MAX_NODES / _n_nodes(spaces[0].mod)) ** 2)


def _n_nodes(module: tvm.IRModule) -> int:
    n_nodes = 0

    def count(_: Any) -> None:
        nonlocal n_nodes
        n_nodes += 1

    tvm_ffi.structural_walk(module["main"].body, (tvm_ffi.Object, count))
    return n_nodes


def are_closed(spaces: Sequence[Schedule]) -> bool:
    """Return whether spaces leave no decision open, so that each is a single program.

    Those of workloads without a reduction are, such as a concatenation or an activation.
    """
    instructions = chain.from_iterable(space.trace.insts for space in spaces)
    return not any(str(each.kind.name).startswith("Sample") for each in instructions)


def closed_programs(context: TuneContext, spaces: Sequence[Schedule]) -> list[MeasureCandidate]:
    """Return all programs of closed spaces: that by rule, one a space, and few mutants of these."""
    fixed: list[Trace] = [space.trace for space in spaces]
    workload = ranking.describe(context.mod, context.target, spaces)
    by_rule = (trace for _, trace in ranking.ranked(workload))
    mutated = mutants.mutants(context, fixed, _N_MUTANTS, seed=1)
    return mutants.programs(context, chain(by_rule, fixed, mutated))
