"""Constants are folded where their shapes are known."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tuner.engines.relax.graph.fold import fold_constants


def expanded(size: int | tirx.Var, dtype: str = "float32") -> tvm.IRModule:
    """Return a module that expands a constant to the shape of its input."""
    x = relax.Var("x", relax.TensorType((size,), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        ones = relax.op.broadcast_to(relax.const([1.0], dtype), (size,))
        builder.emit_func_output(builder.emit(relax.op.add(x, builder.emit(ones))))
    return builder.get()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_constant_is_expanded(dtype: str) -> None:
    """The kernel has nothing left to do."""
    assert "broadcast_to" not in fold_constants(expanded(4, dtype)).script()


@pytest.mark.parametrize("axis", [-1, None])
def test_constants_are_concatenated(axis: int | None) -> None:
    """TVM would compile a kernel for each of the weights of a recurrent layer."""
    x = relax.Var("x", relax.TensorType((8,), "float32"))
    parts = [np.arange(4.0, dtype="float32"), np.ones(4, "float32")]
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        both = builder.emit(relax.op.concat([relax.const(each) for each in parts], axis))
        builder.emit_func_output(builder.emit(relax.op.add(x, both)))

    folded = fold_constants(builder.get())["main"]

    (binding,) = folded.body.blocks[0].bindings
    np.testing.assert_array_equal(binding.value.args[1].value.numpy(), np.concatenate(parts))


def test_a_constant_of_a_size_that_data_decides_remains_as_it_is() -> None:
    """Such shapes are refused later, by name."""
    module = fold_constants(expanded(tirx.Var("n", "int64")))

    assert "broadcast_to" in module.script()
