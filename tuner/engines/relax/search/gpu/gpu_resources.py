"""Resources that a GPU schedule needs, read from its trace without replaying it.

Of the tilings that MetaSchedule draws for a convolution, 85 to 95 % have blocks of fewer threads
than a warp or more than the limit, and three in four of the others need too much shared memory.
TVM detects this by replaying, post-processing and lowering each, 15 to 45 ms; the decisions alone
reveal most of it in microseconds. TVM checks the rest.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import tvm
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import Trace
from tvm.target import Target
from tvm.tirx import Add, Cast, IntImm, IterVar, Mul

# Value of an index as a function of the loop values.
_Index = Callable[[Sequence[int]], int]


class Footprints:
    """Memory footprints of the tiles of a block, per operand and for its sums.

    Args:
        module: The workload.

    Raises:
        ValueError: If an index of an operand is not a sum of multiples of loops.
    """

    def __init__(self, module: tvm.IRModule, block: str) -> None:
        schedule = Schedule(module)
        block_ir: SBlock = schedule.get(schedule.get_sblock(block))
        order = {hash(axis.var): position for position, axis in enumerate(block_ir.iter_vars)}
        self._operands = [
            (_itemsize(region), [_index(part.min, order) for part in region.region])
            for region in block_ir.reads
        ]
        self._is_output = [axis.iter_type == IterVar.DataPar for axis in block_ir.iter_vars]
        self._sum_bytes = _itemsize(block_ir.writes[0])

    def bytes_of(self, operand: int, extents: Sequence[int]) -> int:
        """Return the bytes of an operand that a tile with these loop extents reads."""
        return self._operands[operand][0] * math.prod(self.shape_of(operand, extents))

    def shape_of(self, operand: int, extents: Sequence[int]) -> list[int]:
        """Return the shape of the part of an operand that a tile with these loop extents reads."""
        last = [extent - 1 for extent in extents]
        # Indices grow with every loop, so that the last of the tile has the largest.
        first = [0] * len(last)
        return [index(last) - index(first) + 1 for index in self._operands[operand][1]]

    def sum_bytes_of(self, extents: Sequence[int]) -> int:
        """Return the bytes of the sums that a tile with these loop extents accumulates."""
        outputs = zip(extents, self._is_output, strict=True)
        return self._sum_bytes * math.prod(extent for extent, is_output in outputs if is_output)


def _itemsize(region: Any) -> int:
    return int(tvm.runtime.DataType(str(region.source.dtype)).itemsize)


def _index(expression: Any, order: dict[int, int]) -> _Index:
    if isinstance(expression, IntImm):
        constant = int(expression)
        return lambda _: constant
    if isinstance(expression, Cast):
        return _index(expression.value, order)
    if isinstance(expression, (Add, Mul)):
        left, right = _index(expression.a, order), _index(expression.b, order)
        if isinstance(expression, Add):
            return lambda loops: left(loops) + right(loops)
        return lambda loops: left(loops) * right(loops)
    if hash(expression) in order:
        position = order[hash(expression)]
        return lambda loops: loops[position]
    raise ValueError(f"not a sum of multiples of loops: {expression}")


_WARP_SIZE = 32
_REGISTER_BYTES = 4
# Registers per thread since 3.5 (CUDA C++ Programming Guide, "Technical Specifications").
_MAX_REGISTERS = 255
# Maximum draws of decisions until some fit.
_MAX_DRAWS = 4000
_PREFIX = "meta_schedule.thread_extent_"

Decisions = dict[Any, Any]
_Step = Callable[[Mapping[Any, Any], "_State"], None]


@dataclass
class _State:
    """State after some decisions: loops and numbers by hash of their variable, threads, tiles."""

    values: dict[int, int] = field(default_factory=dict)
    threads: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    tiles: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    shared_bytes: int = 0
    sum_bytes: int = 0

    def tile_of(self, block: int) -> list[int] | None:
        """Return the extents of the loops of a block inside its tile; None if some are unknown."""
        tiles = self.tiles[block]
        return list(tiles.values()) if list(tiles) == list(range(len(tiles))) else None


@dataclass(frozen=True)
class _Fetch:
    """A part of an operand that threads fetch to shared memory, some numbers at a time."""

    lanes: int
    block: int = 0
    operand: int = 0
    footprints: Footprints | None = None

    def builds(self, state: _State) -> bool:
        """True if TVM 0.27 builds it; else "Check failed: (eval_vec_)" in ThreadSync.

        The build fails where the index in shared memory is not a ramp: three numbers at a time,
        or numbers from several rows of a tensor with three dimensions or more.
        """
        n_lanes = state.values.get(self.lanes, 1)
        tile = state.tile_of(self.block)
        if n_lanes.bit_count() != 1 or self.footprints is None or tile is None:
            return n_lanes.bit_count() == 1
        shape = [size for size in self.footprints.shape_of(self.operand, tile) if size > 1]
        return len(shape) < 3 or shape[-1] % n_lanes == 0


class Limits:
    """Resources of a GPU that the blocks of a workload may use.

    Args:
        target: Target with the limits of threads, shared memory and registers per block.
    """

    def __init__(self, module: tvm.IRModule, target: Target) -> None:
        self._module = module
        self._footprints: dict[str, Footprints | None] = {}
        self.max_threads = int(target.attrs["max_threads_per_block"])
        self.max_shared_bytes = int(target.attrs["max_shared_memory_per_block"])
        self.max_registers = int(target.attrs["registers_per_block"])

    def n_outputs_of(self, block: str) -> int:
        """Return the number of elements that a block computes."""
        schedule = Schedule(self._module)
        iters = schedule.get(schedule.get_sblock(block)).iter_vars
        outputs = [axis.dom.extent for axis in iters if axis.iter_type == IterVar.DataPar]
        return math.prod(int(extent) for extent in outputs)

    def footprints_of(self, block: str) -> Footprints | None:
        """Return the footprints of the tiles of a block; None if they cannot be counted."""
        if block not in self._footprints:
            try:
                self._footprints[block] = Footprints(self._module, block)
            except ValueError:
                self._footprints[block] = None
        return self._footprints[block]


class Plan:
    """The decisions of a trace, and the resources that follow from them.

    Args:
        trace: Trace of a GPU schedule; read up to its post-processing.
        limits: Limits of the workload that it schedules.
    """

    def __init__(self, trace: Trace, limits: Limits) -> None:
        self._trace = trace
        self._limits = limits
        self._draws: list[tuple[Any, Callable[[Random], Any]]] = []
        self._steps: list[_Step] = []
        self._names: dict[int, str] = {}
        self._loops: dict[int, tuple[int, int]] = {}
        self._low, self._high = 1, limits.max_threads
        self._n_lanes = 1
        self._cached: dict[int, tuple[int, int, Footprints | None]] = {}
        self._fetches: list[_Fetch] = []
        self._unroll = 0
        self._repeats_sums = False
        self._n_stages = 1
        for instruction in trace.insts:
            kind = str(instruction.kind.name)
            if kind == "EnterPostproc":
                break
            if kind in _READERS:
                _READERS[kind](self, instruction)

    def fits(self, decisions: Mapping[Any, Any]) -> bool:
        """True if, as far as the trace shows, a GPU can run it and TVM can build it."""
        state = _State()
        for step in self._steps:
            step(decisions, state)
        return (
            all(fetch.builds(state) for fetch in self._fetches)
            and not (self._repeats_sums and state.values.get(self._unroll, 0))
            and state.shared_bytes * self._n_stages <= self._limits.max_shared_bytes
            and self._has_threads(state)
        )

    def _has_threads(self, state: _State) -> bool:
        """Return True if the threads of a block are within limits and have registers for its sums.

        Larger sums spill to memory: slow, and half a minute of NVRTC for the worst.
        """
        axes = [extents for axis, extents in state.threads.items() if axis.startswith("threadIdx")]
        if not axes or any(len(extents) != 1 for extents in axes):
            return True
        n_threads = self._n_lanes * math.prod(extent for extents in axes for extent in extents)
        n_registers = min(n_threads * _MAX_REGISTERS, self._limits.max_registers)
        return (
            self._low <= n_threads <= self._high
            and state.sum_bytes <= n_registers * _REGISTER_BYTES
        )

    def draw(self, random: Random) -> Decisions | None:
        """Draw decisions that fit; return None if no draw does."""
        for _ in range(_MAX_DRAWS):
            decisions = {instruction: draw(random) for instruction, draw in self._draws}
            if self.fits(decisions):
                return decisions
        return None

    def read_block(self, instruction: Any) -> None:
        """Note the block of a variable."""
        (block,) = instruction.outputs
        self._names[hash(block)] = str(instruction.attrs[0])

    def read_loops(self, instruction: Any) -> None:
        """Note the loops of a block by variable."""
        (block,) = instruction.inputs
        if hash(block) in self._names:
            for position, loop in enumerate(instruction.outputs):
                self._loops.setdefault(hash(loop), (hash(block), position))

    def read_tile(self, instruction: Any) -> None:
        """Draw the factors of a loop; all but the first lie inside the tile of a block."""
        n_parts, largest = (int(value) for value in instruction.attrs)
        total = math.prod(int(value) for value in self._trace.get_decision(instruction))
        outputs = [hash(output) for output in instruction.outputs]
        loop = self._loops.get(hash(instruction.inputs[0]))

        def step(decisions: Mapping[Any, Any], state: _State) -> None:
            factors = [int(factor) for factor in decisions[instruction]]
            state.values.update(zip(outputs, factors, strict=True))
            if loop:
                state.tiles[loop[0]][loop[1]] = math.prod(factors[1:])

        self._draws.append((instruction, lambda random: _factor(total, n_parts, largest, random)))
        self._steps.append(step)

    def read_categorical(self, instruction: Any) -> None:
        """Draw one of several numbers."""
        candidates = [int(value) for value in instruction.attrs[0]]
        (output,) = map(hash, instruction.outputs)

        def step(decisions: Mapping[Any, Any], state: _State) -> None:
            state.values[output] = candidates[int(decisions[instruction])]

        self._draws.append((instruction, lambda random: random.randrange(len(candidates))))
        self._steps.append(step)

    def read_split(self, instruction: Any) -> None:
        """Give the loops of a split its factors as extents."""
        pairs = list(zip(instruction.outputs, instruction.inputs[1:], strict=True))
        factors = [(hash(loop), hash(factor)) for loop, factor in pairs if factor is not None]

        def step(_: Mapping[Any, Any], state: _State) -> None:
            for loop, factor in factors:
                if factor in state.values:
                    state.values[loop] = state.values[factor]

        self._steps.append(step)

    def read_fuse(self, instruction: Any) -> None:
        """Give a fused loop the product of its parts as extent."""
        loops = [hash(loop) for loop in instruction.inputs]
        (output,) = map(hash, instruction.outputs)

        def step(_: Mapping[Any, Any], state: _State) -> None:
            if all(loop in state.values for loop in loops):
                state.values[output] = math.prod(state.values[loop] for loop in loops)

        self._steps.append(step)

    def read_bind(self, instruction: Any) -> None:
        """Count the threads of an axis; an unknown extent leaves the axis unknown."""
        loop, axis = hash(instruction.inputs[0]), str(instruction.attrs[0])

        def step(_: Mapping[Any, Any], state: _State) -> None:
            is_known = loop in state.values
            state.threads[axis].update({state.values[loop]} if is_known else {0, -1})

        self._steps.append(step)

    def read_cache(self, instruction: Any) -> None:
        """Add the part of an operand that a block keeps in shared memory."""
        block, operand = hash(instruction.inputs[0]), int(instruction.attrs[0])
        if block not in self._names or str(instruction.attrs[1]) != "shared":
            return
        footprints = self._limits.footprints_of(self._names[block])
        self._cached[hash(instruction.outputs[0])] = (block, operand, footprints)

        def step(_: Mapping[Any, Any], state: _State) -> None:
            tile = state.tile_of(block)
            if footprints and tile is not None:
                state.shared_bytes += footprints.bytes_of(operand, tile)

        self._steps.append(step)

    def read_sums(self, instruction: Any) -> None:
        """Add the sums that a block keeps in registers."""
        block = hash(instruction.inputs[0])
        if block not in self._names or str(instruction.attrs[1]) != "local":
            return
        footprints = self._limits.footprints_of(self._names[block])

        def step(_: Mapping[Any, Any], state: _State) -> None:
            tile = state.tile_of(block)
            if footprints and tile is not None:
                state.sum_bytes += footprints.sum_bytes_of(tile)

        self._steps.append(step)

    def read_scope(self, instruction: Any) -> None:
        """Note sums across threads that a block makes one after the other.

        TVM 0.27 fails to build the loop over them if it is unrolled ("load_remap_" in its pass
        LowerThreadAllreduce).
        """
        name = self._names.get(hash(instruction.inputs[0]))
        if name is not None and str(instruction.attrs[1]) == "shared":
            self._repeats_sums |= self._limits.n_outputs_of(name) > 1

    def read_annotation(self, instruction: Any) -> None:
        """Read the limits, threads and operand copies of an annotation."""
        name = str(instruction.attrs[0])
        if name == f"{_PREFIX}low_inclusive":
            self._low = int(instruction.inputs[1])
        elif name == f"{_PREFIX}high_inclusive":
            self._high = int(instruction.inputs[1])
        elif name == "meta_schedule.cooperative_fetch":
            cached = self._cached.get(hash(instruction.inputs[0]), ())
            self._fetches.append(_Fetch(hash(instruction.inputs[1]), *cached))
        elif name == "meta_schedule.unroll_explicit":
            self._unroll = hash(instruction.inputs[1])
        elif name == "warp_execution":
            self._n_lanes = _WARP_SIZE
        elif name == "software_pipeline_stage":
            self._n_stages = 1 + max(int(stage) for stage in instruction.inputs[1])


def _factor(total: int, n_parts: int, largest: int, random: Random) -> list[int]:
    """Factor an extent at random, with the innermost factor bounded."""
    parts = [1] * n_parts
    number = total
    primes, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            primes.append(divisor)
            number //= divisor
        divisor += 1
    for prime in [*primes, number] if number > 1 else primes:
        allowed = n_parts if parts[-1] * prime <= largest else n_parts - 1
        parts[random.randrange(allowed)] *= prime
    return parts


_READERS: dict[str, Callable[[Plan, Any], None]] = {
    "GetSBlock": Plan.read_block,
    "GetLoops": Plan.read_loops,
    "SamplePerfectTile": Plan.read_tile,
    "SampleCategorical": Plan.read_categorical,
    "Split": Plan.read_split,
    "Fuse": Plan.read_fuse,
    "Bind": Plan.read_bind,
    "CacheRead": Plan.read_cache,
    "CacheWrite": Plan.read_sums,
    "SetScope": Plan.read_scope,
    "Annotate": Plan.read_annotation,
}
