"""Memory and order of the kernel calls of programs for GPUs."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te

from tuner.engines.relax import worker
from tuner.engines.relax.codegen import link
from tuner.engines.relax.library import program_memory
from tuner.engines.relax.target.targets import make_target
from tuner.library.manifest import BEGIN_CALL, WORKSPACE, ProgramMemory

_N_CALLS = 24


def program(rng: random.Random, n_back: int) -> tvm.IRModule:
    """Return a network of sums: a tensor of the last ``n_back`` and another one, or the input."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            tensors = [x]
            for _ in range(_N_CALLS):
                a, b = rng.choice(tensors[-n_back:]), rng.choice([x, *tensors[-n_back:]])
                tensors.append(builder.emit_te(_add, a, b))
            returned = builder.emit_output(relax.Tuple([tensors[-1], rng.choice(tensors[1:])]))
        builder.emit_func_output(returned)
    return builder.finalize()


def _add(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    return te.compute((8,), lambda i: a[i] + b[i] + 1.0, "add")


def lowered(module: tvm.IRModule) -> tvm.IRModule:
    """Lower a network as a library's, with kernels of one name each."""
    target = make_target(worker.describe_target("cuda:sm_90").spec)
    functions = dict(module.functions_items())
    symbols = {
        variable.name_hint: variable.name_hint
        for variable, function in module.functions_items()
        if not isinstance(function, relax.Function)
    }
    with target:
        return link.lower_programs(functions, symbols, target)


def calls_of(module: tvm.IRModule) -> Iterator[tuple[int, Any, list[Any], Any]]:
    """Yield number, function, memory read and memory written of each call of a program."""
    (function,) = (
        function
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function) and variable.name_hint != WORKSPACE
    )
    memory: dict[Any, Any] = {}
    number = -1
    for binding in function.body.blocks[0].bindings:
        value = binding.value
        if not isinstance(value, relax.Call):
            continue
        name = str(getattr(value.op, "name", "") or getattr(value.op, "global_symbol", ""))
        if name in ("relax.vm.alloc_tensor", "vm.builtin.reshape"):
            memory[binding.var] = memory.get(value.args[0], value.args[0])
        elif name == BEGIN_CALL:
            assert int(value.args[0]) == number + 1
        elif isinstance(value.op, tvm.ir.GlobalVar):
            number += 1
            *read, written = [memory.get(arg, arg) for arg in value.args]
            yield number, value.op.name_hint, read, written


def outputs_in_order(module: tvm.IRModule, order: list[int]) -> dict[str, Any]:
    """Run the calls of a program in an order; return the contents of its memory by name."""
    contents: dict[str, Any] = {"x": np.ones(8)}
    calls = list(calls_of(module))
    for number in order:
        _, _, read, written = calls[number]
        left, right = (contents[each.name] for each in (read if len(read) == 2 else 2 * read))
        contents[written.name] = left + right + 1.0
    return {name: value for name, value in contents.items() if name.startswith("output")}


def any_order(rng: random.Random, memory: ProgramMemory) -> list[int]:
    """Return the calls in an order that the program allows."""
    order: list[int] = []
    while len(order) < len(memory.after):
        ready = [
            call
            for call, needed in enumerate(memory.after)
            if call not in order and set(needed) <= set(order)
        ]
        order.append(rng.choice(ready))
    return order


@pytest.mark.parametrize("n_back", [2, 4, 12])
@pytest.mark.parametrize("seed", [0, 1])
def test_calls_in_any_allowed_order_compute_the_same(seed: int, n_back: int) -> None:
    """No call takes memory that another one still uses where both may run at once."""
    rng = random.Random(f"{seed} {n_back}")
    changed, memories = program_memory.take_memory(lowered(program(rng, n_back)), {})
    (memory,) = memories.values()
    assert len(memory.after) == sum(1 for _ in calls_of(changed))
    expected = outputs_in_order(changed, list(range(len(memory.after))))
    assert expected

    for _ in range(50):
        order = any_order(rng, memory)
        outputs = outputs_in_order(changed, order)
        for name, value in expected.items():
            np.testing.assert_array_equal(outputs[name], value, f"{name} in the order {order}")


def test_calls_one_after_the_other_have_no_order_of_their_own() -> None:
    """Two blocks in turns hold all tensors, and nothing is called between the kernels."""
    changed, memories = program_memory.take_memory(lowered(program(random.Random(0), 1)), {})
    (memory,) = memories.values()

    assert memory.after == ()
    assert BEGIN_CALL not in changed.script()
    blocks = {written.name for *_, written in calls_of(changed)} - {"output_0", "output_1"}
    assert len(blocks) == 2


def test_a_kernel_with_counters_never_runs_beside_itself() -> None:
    """Its calls are ordered although they need nothing of each other."""
    module = lowered(program(random.Random(1), 12))
    changed, memories = program_memory.take_memory(module, {})
    functions = [name for _, name, *_ in calls_of(changed)]
    _, counted = program_memory.take_memory(module, dict.fromkeys(functions, "kernel"))

    (free,), (ordered,) = memories.values(), counted.values()
    assert free.after
    assert ordered.after == ()
