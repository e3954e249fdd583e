"""Search spaces of workloads, by kind of target."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import postproc
from tvm.s_tir.meta_schedule.mutator import Mutator
from tvm.s_tir.meta_schedule.schedule_rule import ScheduleRule
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.target import Target

from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.schedules.gpu import intrinsics, tensor_cores
from tuner.engines.relax.search.gpu import gpu_sampling
from tuner.engines.relax.search.sources.random_programs import DrawTraces, draw_undecided
from tuner.engines.relax.target.targets import make_target

# Nodes of a program up to which it costs TVM some 25 ms at most to apply and to analyse. Beyond,
# the time grows with the square: 0.6 s for the 9,400 nodes of a concatenation of 40 tensors. The
# bound counts programs, not seconds, so that a round remains a pure function of its request.
_MAX_NODES = 2400


@dataclass(frozen=True)
class Space:
    """The programs of a workload that a search can find.

    Attributes:
        schedules: TVM's design spaces.
        draw_traces: Source of random traces.
        make_generator: Returns TVM's generator with mutators and post-processors, given a seed.
        share: Share of the usual number of programs that a search applies.
        is_closed: True if the spaces leave nothing to decide.
        is_seeded: True if the first population is drawn here, because TVM would reject its own.
        evolves_late: True if checking a program takes too long to evolve by random scores.
    """

    schedules: list[Schedule]
    draw_traces: DrawTraces
    make_generator: Callable[[int], PostOrderApply]
    share: float = 1.0
    is_closed: bool = False
    is_seeded: bool = False
    evolves_late: bool = False


def space_of(ir: bytes, spec: str) -> Space:
    """Return the space of a workload on a target."""
    return _SPACES[str(make_target(spec).kind.name)](ir, spec)


def _cpu_space(ir: bytes, spec: str) -> Space:
    spaces = cpu_spaces(ir, spec)
    return Space(
        spaces,
        draw_undecided(spaces),
        lambda _: cpu_generator(),
        _share_of(spaces),
        is_closed=_are_closed(spaces),
    )


@lru_cache(maxsize=64)
def cpu_spaces(ir: bytes, spec: str) -> list[Schedule]:
    """Return TVM's spaces of a workload for a CPU."""
    return traces.design_spaces(workloads.load(ir), make_target(spec), cpu_generator())


def cpu_generator() -> PostOrderApply:
    """Return the generator, without weight packing, which would take a third of a search."""
    return PostOrderApply(
        postprocs=[
            postproc.DisallowDynamicLoop(),
            postproc.RewriteParallelVectorizeUnroll(),
            postproc.RewriteReductionBlock(),
            postproc.RewriteTensorize(),
        ]
    )


def _gpu_space(ir: bytes, spec: str) -> Space:
    spaces, module, target = gpu_spaces(ir, spec), workloads.load(ir), make_target(spec)
    return Space(
        spaces,
        # Of traces that fit the limits of the device.
        lambda n, seed: gpu_sampling.sample(spaces, module, target, n, seed),
        lambda seed: _gpu_generator([], gpu_sampling.mutators(module, target, seed)),
        is_seeded=True,
        # TVM's check takes some 30 ms for each program.
        evolves_late=True,
    )


@lru_cache(maxsize=64)
def gpu_spaces(ir: bytes, spec: str) -> list[Schedule]:
    """Return TVM's spaces of a workload for a GPU: tensor cores, then CUDA cores.

    There are none where TVM's rules raise, as for attention.
    """
    module, target = workloads.load(ir), make_target(spec)
    *tiled, others = tensor_cores.rules_for(module, target)
    generated = [
        space
        for rules in tiled
        for space in _generate_if_fit(module, target, rules)
        if intrinsics.named_in(traces.dump(space.trace))
    ]
    return generated + _generate_if_fit(module, target, others)


def _generate_if_fit(
    module: tvm.IRModule, target: Target, rules: list[ScheduleRule]
) -> list[Schedule]:
    """Generate the spaces of some rules; none for workloads that make TVM's rules raise."""
    try:
        return traces.design_spaces(module, target, _gpu_generator(rules, {}))
    except (IndexError, ValueError, RuntimeError):
        return []


def _gpu_generator(rules: list[ScheduleRule], mutators: dict[Mutator, float]) -> PostOrderApply:
    return PostOrderApply(
        sch_rules=rules, postprocs=traces.gpu_processors(), mutator_probs=mutators
    )


_SPACES: Mapping[str, Callable[[bytes, str], Space]] = {"llvm": _cpu_space, "cuda": _gpu_space}


def _share_of(spaces: Sequence[Schedule]) -> float:
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


def _are_closed(spaces: Sequence[Schedule]) -> bool:
    """Return whether spaces leave no decision open, so that each is a single program.

    Those of workloads without a reduction are, such as a concatenation or an activation.
    """
    instructions = chain.from_iterable(space.trace.insts for space in spaces)
    return not any(str(each.kind.name).startswith("Sample") for each in instructions)
