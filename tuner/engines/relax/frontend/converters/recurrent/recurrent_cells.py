"""Definitions of one step of RNN, GRU and LSTM, after the specification of ONNX."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx, topi

from tuner.engines.relax.frontend.converters.recurrent.activations import Activation

Tensors = Sequence[Any]


@dataclass(frozen=True)
class Step:
    """Attributes of a layer that change its step."""

    hidden: int
    clip: float | None
    linear_before_reset: bool
    input_forget: bool


@dataclass(frozen=True)
class Cell:
    """A kind of layer.

    Attributes:
        activations: Default activations of one direction.
        n_states: Number of states that a step takes and returns.
        compute: Function of the step, the activations, the input projections of all steps, the
            number of the row, or else those of the step and None, the states, the other tensors by
            name, and True for the reverse direction, to the new states.
    """

    activations: tuple[str, ...]
    n_states: int
    compute: Callable[
        [Step, Sequence[Activation], Tensors, Mapping[str, te.Tensor], bool], list[te.Tensor]
    ]


def _product(state: te.Tensor, weight: te.Tensor, first: int, n: int, name: str) -> te.Tensor:
    """Multiply a state with columns ``first`` to ``first + n`` of a weight."""
    k = te.reduce_axis((0, state.shape[1]), f"{name}_k")
    dtype = str(state.dtype)
    is_half = dtype in ("float16", "bfloat16")

    def at(b: Any, j: Any) -> Any:
        factors = state[b, k], weight[k, first + j]
        if is_half:
            factors = tuple(factor.astype("float32") for factor in factors)
        return te.sum(factors[0] * factors[1], axis=k)

    product = te.compute((state.shape[0], n), at, name)
    return topi.cast(product, dtype) if is_half else product


def _kept(product: te.Tensor, bias: te.Tensor | None) -> te.Tensor:
    """Return a product with its bias as a tensor that TVM's rules do not dissolve.

    They fail on a product that one block alone reads, at several places.
    """
    return te.compute(
        product.shape,
        lambda b, j: product[b, j] if bias is None else product[b, j] + bias[j],
        "sums",
        attrs={"meta_schedule.inline_rule": "disable"},
    )


class _Inputs:
    """Input projections of a step, and the validity of the step for each sequence."""

    def __init__(self, tensors: Tensors, others: Mapping[str, te.Tensor], is_reverse: bool) -> None:
        self._projected, self._row = tensors[0], tensors[1]
        self._lengths = others.get("lengths")
        self._is_reverse = is_reverse

    def __call__(self, b: Any, column: Any) -> Any:
        if self._row is None:
            return self._projected[b, column]
        row = self._row[()]
        if self._lengths is not None and self._is_reverse:
            n_rows = tirx.const(int(self._projected.shape[0]), "int64")
            length = te.min(self._lengths[b].astype("int64"), n_rows)
            row = te.if_then_else(row < length, length - 1 - row, row)
        return self._projected[row, b, column]

    def keep(self, b: Any, new: Any, old: Any) -> Any:
        """Return the new state, or the old one behind the end of a sequence."""
        if self._row is None or self._lengths is None:
            return new
        return te.if_then_else(self._row[()] < self._lengths[b].astype("int64"), new, old)


def _clipped(step: Step, value: Any) -> Any:
    if step.clip is None:
        return value
    bound = tirx.const(step.clip, value.ty.dtype)
    return te.max(te.min(value, bound), -bound)


def _rnn(
    step: Step,
    functions: Sequence[Activation],
    tensors: Tensors,
    others: Mapping[str, te.Tensor],
    is_reverse: bool,
) -> list[te.Tensor]:
    inputs, state = _Inputs(tensors, others, is_reverse), tensors[2]
    product = _product(state, others["weight"], 0, step.hidden, "product")

    def new(b: Any, j: Any) -> Any:
        value = functions[0](_clipped(step, product[b, j] + inputs(b, j)))
        return inputs.keep(b, value, state[b, j])

    return [te.compute(state.shape, new, "state")]


def _gru(
    step: Step,
    functions: Sequence[Activation],
    tensors: Tensors,
    others: Mapping[str, te.Tensor],
    is_reverse: bool,
) -> list[te.Tensor]:
    inputs, state, size = _Inputs(tensors, others, is_reverse), tensors[2], step.hidden
    weight, bias = others["weight"], others.get("bias")
    n_first = 3 * size if step.linear_before_reset else 2 * size
    product = _kept(_product(state, weight, 0, n_first, "product"), bias)

    def gate(index: int, b: Any, j: Any) -> Any:
        value = product[b, index * size + j] + inputs(b, index * size + j)
        return functions[0](_clipped(step, value))

    if step.linear_before_reset:

        def hidden(b: Any, j: Any) -> Any:
            return gate(1, b, j) * product[b, 2 * size + j]
    else:
        reset = te.compute(state.shape, lambda b, j: gate(1, b, j) * state[b, j], "reset")
        second = _product(reset, weight, 2 * size, size, "second")

        def hidden(b: Any, j: Any) -> Any:
            return second[b, j]

    def new(b: Any, j: Any) -> Any:
        candidate = functions[1](_clipped(step, hidden(b, j) + inputs(b, 2 * size + j)))
        update = gate(0, b, j)
        value = (1 - update) * candidate + update * state[b, j]
        return inputs.keep(b, value, state[b, j])

    return [te.compute(state.shape, new, "state")]


def _lstm(
    step: Step,
    functions: Sequence[Activation],
    tensors: Tensors,
    others: Mapping[str, te.Tensor],
    is_reverse: bool,
) -> list[te.Tensor]:
    inputs, state, memory, size = _Inputs(tensors, others, is_reverse), *tensors[2:4], step.hidden
    peepholes = others.get("peepholes")
    product = _product(state, others["weight"], 0, 4 * size, "product")

    def gate(index: int, b: Any, j: Any, seen: Any = None) -> Any:
        value = product[b, index * size + j] + inputs(b, index * size + j)
        if peepholes is not None and seen is not None:
            value += peepholes[index * size + j] * seen
        return functions[1 if index == 3 else 0](_clipped(step, value))

    def new_memory(b: Any, j: Any) -> Any:
        entered = gate(0, b, j, memory[b, j])
        kept = 1 - entered if step.input_forget else gate(2, b, j, memory[b, j])
        value = kept * memory[b, j] + entered * gate(3, b, j)
        return inputs.keep(b, value, memory[b, j])

    after = te.compute(memory.shape, new_memory, "memory")

    def new_state(b: Any, j: Any) -> Any:
        value = gate(1, b, j, after[b, j]) * functions[2](after[b, j])
        return inputs.keep(b, value, state[b, j])

    return [te.compute(state.shape, new_state, "state"), after]


CELLS = {
    "RNN": Cell(("Tanh",), 1, _rnn),
    "GRU": Cell(("Sigmoid", "Tanh"), 1, _gru),
    "LSTM": Cell(("Sigmoid", "Tanh", "Tanh"), 2, _lstm),
}
