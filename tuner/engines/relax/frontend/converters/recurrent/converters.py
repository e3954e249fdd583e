"""Converters of RNN, GRU and LSTM: one product for all inputs, then the steps."""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm.ir import GenericConst
from tvm.target import Target

from tuner.engines.relax.frontend.converters.recurrent.recurrent_calls import call_steps
from tuner.engines.relax.frontend.converters.recurrent.recurrent_layers import read_layer
from tuner.engines.relax.frontend.converters.recurrent.recurrent_loops import loop_steps
from tuner.engines.relax.target.kinds import is_cpu


def converter_of(kind: str) -> Callable[[Any, Any, dict[str, Any], int], relax.Expr]:
    """Return the converter of ``RNN``, ``GRU`` or ``LSTM``."""

    def convert(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
        del opset
        batch_first = bool(attrs.get("layout", 0))
        states = (5, 6) if kind == "LSTM" else (5,)
        # An input may be an expression that no variable holds yet, and is used more than once.
        values = [_bound(builder, value) for value in inputs]
        values += [None] * (8 - len(values))
        if batch_first:
            for slot in (0, *states):
                if values[slot] is not None:
                    values[slot] = builder.emit(relax.op.permute_dims(values[slot], [1, 0, 2]))
        layer, target = read_layer(kind, values, attrs), Target.current(allow_none=True)
        # A loop can call kernels on a CPU.
        if target is not None and is_cpu(target) and _depends_on_data(builder, layer.inputs):
            outputs = loop_steps(builder, layer, target)
        else:
            outputs = call_steps(builder, layer)
        if batch_first:
            orders = [[2, 0, 1, 3], *[[1, 0, 2]] * len(states)]
            outputs = [
                builder.emit(relax.op.permute_dims(output, order))
                for output, order in zip(outputs, orders, strict=True)
            ]
        return relax.Tuple(outputs)

    return convert


def _depends_on_data(builder: Any, values: Sequence[relax.Expr | None]) -> bool:
    """Return whether an input of the network leads to a value; TVM folds the kernels of others."""
    waiting = [value for value in values if value is not None]
    seen: set[relax.Var] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, relax.Var):
            if value in seen:
                continue
            seen.add(value)
            bound = builder.lookup_binding(value)
            if bound is None:
                return True
            waiting.append(bound)
        waiting += [*getattr(value, "args", ()), *getattr(value, "fields", ())]
        if isinstance(value, relax.TupleGetItem):
            waiting.append(value.tuple_value)
    return False


def _bound(builder: Any, value: Any) -> Any:
    return value if value is None or isinstance(value, GenericConst) else builder.emit(value)
