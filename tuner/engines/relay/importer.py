"""Import of cleaned models as Relay modules in the layout that Ansor searches best."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import DFPatternCallback, is_op, rewrite, wildcard

from tuner.engines.base import ModelFile
from tuner.engines.relay import tvm_compat  # noqa: F401  before ONNX is read
from tuner.errors import ModelError, summary

# As in TVM's tutorial on tuning a network with Ansor: kernels follow their data.
_LAYOUTS = {"nn.conv2d": ["NHWC", "default"], "nn.conv3d": ["NDHWC", "default"]}


def import_model(model: ModelFile) -> tvm.IRModule:
    """Import a cleaned model, its weights as constants.

    Raises:
        ModelError: If the importer does not support it; the message names the operator.
    """
    if model.format != "onnx":
        raise ModelError(
            f"the engine relay reads ONNX models only, not {Path(model.path).suffix}; export the "
            "model to ONNX, or use the engine relax",
            code="unknown-format",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = _import_onnx(model)
    if relay.ty.is_dynamic(module["main"].ret_type):
        raise ModelError(
            "a shape in the model depends on its data, which the engine relay cannot tune; "
            "use the engine relax",
            code="data-dependent-shape",
        )
    module = define_special_values(module)
    passes = [
        relay.transform.RemoveUnusedFunctions(),
        relay.transform.ConvertLayout(_LAYOUTS),
        relay.transform.FoldConstant(),
    ]
    with tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(module)


def _import_onnx(model: ModelFile) -> tvm.IRModule:
    import onnx

    proto = onnx.load_from_string(Path(model.path).read_bytes())
    shapes = {name: shape for name, (shape, _) in model.inputs.items()}
    try:
        module, _ = relay.frontend.from_onnx(proto, shapes, freeze_params=True)
        return relay.transform.InferType()(module)
    except Exception as error:  # the importer raises any error of its operators
        raise ModelError(
            f"cannot import the model: {_summary(error)}", code="unsupported-operator"
        ) from error


def _summary(error: Exception) -> str:
    # The unsupported operator is named above the traceback, which ends with another error.
    return summary(error, last=True, prefer=("not supported", "not implemented"))


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
