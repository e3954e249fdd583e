"""Kernels that loop over the steps of a recurrent layer, and call the kernel of a step.

The step is the workload: it is tuned, verified and compiled alone. A loop has no schedule. Until a
library is linked it is a declaration that knows its steps; then its body calls their objects.

Arguments of a loop, for ``d`` directions, ``t`` steps, ``b`` sequences, ``h`` hidden units, and
``g`` inputs of the gates of a direction:

- the products with all inputs, shape (t, b, d * g);
- for each direction, what its step takes after its row of those: the states, each (b, h), then
  other arguments, such as the recurrent weights;
- the lengths of the sequences, shape (b,), if they differ;
- outputs: the first state after each step (t, d, b, h), then all states after the last, (d, b, h).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import tvm
from tvm.script import tirx as T  # noqa: N812  its name in every TVMScript
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as I  # noqa: N812  as T
from tvm.target import Target
from tvm.tirx import Evaluate, PrimFunc, decl_buffer

from tuner.engines.relax.ir import workloads
from tuner.engines.relax.ir.packed_layouts import LAYOUT_FREE

#: Attribute of a loop: its :class:`StepLoop`.
LOOP = "tuner.loop"
# Alignment of tensors, and size up to which TVM keeps memory on the stack, bytes.
_ALIGNMENT, _MAX_STACK_BYTES = 64, 1024
# TVM's pattern of kernels that nothing is fused into.
_OPAQUE = 8
# Bytes that one core reads from its private cache, and operations that it computes on them, while
# threads start and end: about 4 us.
_START_BYTES, _START_FLOP = 400_000, 200_000


@dataclass(frozen=True)
class StepLoop:
    """The loops of a recurrent layer, one for each direction.

    Attributes:
        steps: Kernel of a step by direction. It takes a row of the products with all inputs,
            (b, g), the states and other arguments, and writes the new states.
        n_steps: Number of steps.
        n_states: Number of states.
        is_reversed: By direction, True if the last step comes first.
        is_parallel: True if each direction has a thread of its own.
        has_lengths: True if the sequences have lengths.
    """

    steps: tuple[PrimFunc, ...]
    n_steps: int
    n_states: int
    is_reversed: tuple[bool, ...]
    is_parallel: bool
    has_lengths: bool

    @classmethod
    def of(cls, function: Any) -> Self | None:
        """Return the loops of a kernel; None if it has none.

        Weights of the kernel are marked as those of its steps.
        """
        attributes = function.attrs or {}
        if LOOP not in attributes:
            return None
        stored = attributes[LOOP]
        loop = cls(
            tuple(stored["steps"]),
            int(stored["n_steps"]),
            int(stored["n_states"]),
            tuple(bool(each) for each in stored["is_reversed"]),
            bool(stored["is_parallel"]),
            bool(stored["has_lengths"]),
        )
        return loop._marked([int(index) for index in attributes.get(LAYOUT_FREE, ())])

    @property
    def n_runs(self) -> int:
        """Runs of a step that one call waits for, all directions together."""
        return self.n_steps * (1 if self.is_parallel else len(self.steps))

    def position(self, direction: int, argument: int) -> int:
        """Return the argument of the loop that is an argument of a step, other than its row."""
        return 1 + direction * (self._n_inputs - 1) + argument - 1

    def declare(self, inputs: Sequence[tuple[Sequence[int], str]]) -> PrimFunc:
        """Return the kernel without a body.

        Args:
            inputs: Shape and data type of each input.
        """
        stored = {**vars(self), "steps": list(self.steps), "is_reversed": list(self.is_reversed)}
        buffers = [decl_buffer(shape, dtype) for shape, dtype in [*inputs, *self.outputs]]
        function = PrimFunc(buffers, Evaluate(0)).without_attr("global_symbol")
        return function.with_attrs({LOOP: stored, "op_pattern": _OPAQUE})

    @property
    def outputs(self) -> list[tuple[list[int], str]]:
        """Shape and data type of each output."""
        state = self.steps[0].params[1]
        shape, dtype = [int(size) for size in state.shape], str(state.dtype)
        last = [len(self.steps), *shape]
        return [([self.n_steps, *last], dtype), *[(last, dtype)] * self.n_states]

    def define(
        self, inputs: Sequence[tuple[Sequence[int], str]], callees: Sequence[str]
    ) -> PrimFunc:
        """Return the kernel with its body.

        Args:
            inputs: Shape and data type of each input, as the objects of the steps take them.
            callees: Name of the step's function by direction.
        """
        with IRBuilder() as builder, I.prim_func():
            I.func_attr({"tirx.noalias": True})
            arguments = [
                I.arg(f"argument_{number}", I.buffer(shape, dtype))
                for number, (shape, dtype) in enumerate([*inputs, *self.outputs])
            ]
            loop = I.parallel if self.is_parallel else I.serial
            with loop(0, len(self.steps)) as current:
                for direction, callee in enumerate(callees):
                    with I.If(current == direction), I.Then():
                        self._define(direction, arguments, callee)
        return builder.get()

    @property
    def _n_inputs(self) -> int:
        """Number of inputs of a step."""
        return len(self.steps[0].params) - self.n_states

    def _marked(self, free: Sequence[int]) -> Self:
        others = range(1 + self.n_states, self._n_inputs)
        marks = [
            index
            for index in others
            if all(self.position(d, index) in free for d in range(len(self.steps)))
        ]
        if not marks:
            return self
        steps = tuple(step.with_attr(LAYOUT_FREE, marks) for step in self.steps)
        return type(self)(**{**vars(self), "steps": steps})

    def _define(self, direction: int, arguments: Sequence[Any], callee: str) -> None:
        """Emit the loop of one direction."""
        n_inputs = len(arguments) - 1 - self.n_states
        projected, sequence, *lasts = arguments[0], *arguments[n_inputs:]
        lengths = arguments[n_inputs - 1] if self.has_lengths else None
        own = [arguments[self.position(direction, i)] for i in range(1, self._n_inputs)]
        given, others = own[: self.n_states], own[self.n_states :]
        n_gates = int(self.steps[direction].params[0].shape[1])
        shape, dtype = [int(size) for size in given[0].shape], str(projected.dtype)
        row, *rest = _allocate([[shape[0], n_gates], *[shape] * (2 * len(given))], dtype)
        states, after = rest[: len(given)], rest[len(given) :]
        with I.grid(*shape) as (b, j):
            for state, initial in zip(states, given, strict=True):
                state.store(initial[b, j], b, j)
        with I.serial(0, self.n_steps) as step:
            with I.grid(shape[0], n_gates) as (b, j):
                time = self._time(direction, step, b, lengths)
                row.store(projected[time, b, direction * n_gates + j], b, j)
            passed = [each.argument for each in (row, *states)]
            passed += [*others, *(each.argument for each in after)]
            I.evaluate(I.call_cpacked(callee, *passed))
            with I.grid(*shape) as (b, j):
                time = self._time(direction, step, b, lengths)
                kept = [T.Cast(dtype, 0), *(state.load(b, j) for state in states)]
                new = [each.load(b, j) for each in (after[0], *after)]
                if lengths is not None:
                    is_inside = step < lengths[b]
                    new = [
                        T.if_then_else(is_inside, *values) for values in zip(new, kept, strict=True)
                    ]
                I.buffer_store(sequence, new[0], [time, direction, b, j])
                for state, value in zip(states, new[1:], strict=True):
                    state.store(value, b, j)
        with I.grid(*shape) as (b, j):
            for last, state in zip(lasts, states, strict=True):
                I.buffer_store(last, state.load(b, j), [direction, b, j])

    def _time(self, direction: int, step: Any, sequence: Any, lengths: Any) -> Any:
        """Return the place in time of a step of a direction."""
        if not self.is_reversed[direction]:
            return step
        if lengths is None:
            return self.n_steps - 1 - step
        # A longer one would lead outside of the tensors.
        length = T.min(lengths[sequence], tvm.tirx.const(self.n_steps, lengths.dtype))
        return T.if_then_else(step < length, length - 1 - step, step)


@dataclass(frozen=True)
class _Matrix:
    """A matrix in the memory of a loop."""

    memory: Any
    first: int
    shape: Sequence[int]

    @property
    def argument(self) -> Any:
        """Tensor to pass to a kernel."""
        # TVM would cut off the rest of the memory if nothing named all of it.
        address = I.address_of(self.memory[self.first]) if self.first else self.memory.data
        shape = I.tvm_stack_make_shape(*self.shape)
        zero = tvm.tirx.const(0, self.memory.dtype)
        return I.tvm_stack_make_array(address, shape, 0, len(self.shape), zero, 0)

    def load(self, row: Any, column: Any) -> Any:
        """Return an element."""
        return self.memory[self._index(row, column)]

    def store(self, value: Any, row: Any, column: Any) -> None:
        """Emit the store of an element."""
        I.buffer_store(self.memory, value, [self._index(row, column)])

    def _index(self, row: Any, column: Any) -> Any:
        return self.first + row * self.shape[1] + column


def _allocate(shapes: Sequence[Sequence[int]], dtype: str) -> list[_Matrix]:
    """Allocate matrices, each aligned as kernels expect of their arguments.

    TVM aligns so what it does not keep on the stack.
    """
    lanes = _ALIGNMENT * 8 // tvm.DataType(dtype).bits
    sizes = [-(-math.prod(shape) // lanes) * lanes for shape in shapes]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    least = (_MAX_STACK_BYTES // _ALIGNMENT + 1) * lanes
    memory = I.alloc_buffer([max(sum(sizes), least)], dtype)
    return [_Matrix(memory, *each) for each in zip(starts, shapes, strict=True)]


def marked(step: PrimFunc, *, is_serial: bool) -> PrimFunc:
    """Mark a kernel as a step, which its workload then says too."""
    return step.with_attr(workloads.STEP, int(is_serial))


def is_step(module: tvm.IRModule) -> bool:
    """Return whether a workload is a step: it runs many times in a row, on the same weights."""
    return workloads.STEP in (module["main"].attrs or {})


def is_serial(module: tvm.IRModule) -> bool:
    """Return whether a workload may not start threads, because its loop has started them."""
    return bool((module["main"].attrs or {}).get(workloads.STEP, 0))


def are_serial(steps: Sequence[PrimFunc], target: Target) -> bool:
    """Return whether each direction runs on one thread, all directions at the same time.

    Threads that share a step start and end once a step, and the directions then follow each other.
    That is worth it where a step is long, and there are more cores than directions.

    Args:
        steps: Kernel of a step by direction.
        target: Target for a CPU.
    """
    n_cores, n = int(target.attrs.get("num-cores", 1)), len(steps)
    step = workloads.as_workload(steps[0])
    starts = max(workloads.n_bytes_of(step) / _START_BYTES, workloads.flop_of(step) / _START_FLOP)
    # One thread takes ``starts``; all threads take ``n * (starts / n_cores + 1)``.
    return starts * (n_cores - n) <= n * n_cores
