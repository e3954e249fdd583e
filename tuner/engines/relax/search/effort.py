"""Effort of the search of a workload: how many programs it applies, by what one of them costs.

The bounds count programs, not seconds, so that a round remains a pure function of its request.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import tvm_ffi
from tvm.s_tir import Schedule

# Nodes of a program up to which it costs TVM some 25 ms at most to apply and to analyse. Beyond,
# the time grows with the square: 0.6 s for the 9,400 nodes of a concatenation of 40 tensors.
_MAX_NODES = 2400


def share(spaces: Sequence[Schedule]) -> float:
    """Return the share of the usual number of programs that a search applies: 1 for most.

    Args:
        spaces: Design spaces of a workload, whose first stands for all.
    """
    if not spaces:
        return 1.0
    n_nodes = 0

    def count(_: Any) -> None:
        nonlocal n_nodes
        n_nodes += 1

    tvm_ffi.structural_walk(spaces[0].mod["main"].body, (tvm_ffi.Object, count))
    return min(1.0, (_MAX_NODES / n_nodes) ** 2)


def are_closed(spaces: Sequence[Schedule]) -> bool:
    """Return whether spaces leave no decision open, so that each is a single program.

    Those of workloads without a reduction are, such as a concatenation or an activation.
    """
    instructions = chain.from_iterable(space.trace.insts for space in spaces)
    return not any(str(each.kind.name).startswith("Sample") for each in instructions)
