"""Operators of Relay that are wrong at NaN, infinities and the limits of types, by other ones."""

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import DFPatternCallback, is_op, rewrite, wildcard


def define_special_values(module: tvm.IRModule) -> tvm.IRModule:
    """Replace signs, which are 0 for NaN, and positions of extremes, which may be -1."""
    callbacks = [_Sign(), _Position("argmax", relay.max), _Position("argmin", relay.min)]
    module["main"] = rewrite(callbacks, module["main"])
    return relay.transform.InferType()(module)


class _Sign(DFPatternCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(require_type=True, rewrite_once=True)
        self.pattern = is_op("sign")(wildcard())

    def callback(self, call: Any, _: Any, __: Any) -> Any:
        (x,) = call.args
        is_float = call.checked_type.dtype.startswith("float")
        return relay.where(relay.isnan(x), x, call) if is_float else call


class _Position(DFPatternCallback):  # type: ignore[misc]
    """The first position of an extreme along an axis, or of NaN, or the last one."""

    def __init__(self, name: str, extreme: Callable[..., Any]) -> None:
        super().__init__(require_type=True)
        self.pattern = is_op(name)(wildcard())
        self._extreme = extreme

    def callback(self, call: Any, _: Any, __: Any) -> Any:
        (x,), attrs = call.args, call.attrs
        shape, dtype = [int(size) for size in x.checked_type.shape], call.checked_type.dtype
        if attrs.axis is None or len(attrs.axis) != 1 or attrs.exclude:
            return call
        axis = int(attrs.axis[0]) % len(shape)
        places = relay.arange(relay.const(shape[axis], dtype), dtype=dtype)
        places = relay.reshape(places, [-1 if each == axis else 1 for each in range(len(shape))])
        is_it = relay.equal(x, self._extreme(x, axis, keepdims=True))
        if x.checked_type.dtype.startswith("float"):
            is_it = relay.logical_or(is_it, relay.isnan(x))
        outside = relay.const(-1 if attrs.select_last_index else shape[axis], dtype)
        chosen = relay.where(is_it, places, outside)
        find = relay.max if attrs.select_last_index else relay.min
        return find(chosen, axis, keepdims=bool(attrs.keepdims))
