"""Import of cleaned models as Relay modules in the layout that Ansor searches best."""

import warnings
from pathlib import Path

import tvm
from tvm import relay

from tuner.engines.base import ModelFile
from tuner.engines.relay import tvm_compat  # noqa: F401  before ONNX is read
from tuner.engines.relay.special_values import define_special_values
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
    passes = [
        relay.transform.RemoveUnusedFunctions(),
        relay.transform.ConvertLayout(_LAYOUTS),
        relay.transform.FoldConstant(),
    ]
    with tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(define_special_values(module))


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
