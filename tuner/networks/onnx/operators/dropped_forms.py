"""Replacement of operators and attributes that the standard has dropped, and runtimes still run."""

from collections.abc import Callable

import numpy as np
from onnx import helper

from tuner.networks.onnx.node_builder import Replacement

_DROPOUT_WITH_MODE = 12


def _scalar(b: Replacement, name: str, default: float) -> str:
    """Return the name of a constant of an attribute, of the type of the first input."""
    return b.constant(np.array(b.attribute(name, default), b.dtype(b.input(0))))


def _affine(b: Replacement) -> None:
    scaled = b.add("Mul", b.input(0), _scalar(b, "alpha", 1.0))
    b.add("Add", scaled, _scalar(b, "beta", 0.0), output=b.node.output[0])


def _scale(b: Replacement) -> None:
    b.add("Mul", b.input(0), _scalar(b, "scale", 1.0), output=b.node.output[0])


def _image_scaler(b: Replacement) -> None:
    """Replace a factor of all channels and a bias of each."""
    bias = np.array(b.attribute("bias", [0.0]), b.dtype(b.input(0))).reshape(1, -1, 1, 1)
    scaled = b.add("Mul", b.input(0), _scalar(b, "scale", 1.0))
    b.add("Add", scaled, b.constant(bias), output=b.node.output[0])


def _parametric_softplus(b: Replacement) -> None:
    scaled = b.add("Mul", b.input(0), _scalar(b, "beta", 1.0))
    grown = b.add("Softplus", scaled)
    b.add("Mul", grown, _scalar(b, "alpha", 1.0), output=b.node.output[0])


def _scaled_tanh(b: Replacement) -> None:
    bent = b.add("Tanh", b.add("Mul", b.input(0), _scalar(b, "beta", 1.0)))
    b.add("Mul", bent, _scalar(b, "alpha", 1.0), output=b.node.output[0])


def _thresholded_relu(b: Replacement) -> None:
    data = b.input(0)
    is_kept = b.add("Greater", data, _scalar(b, "alpha", 1.0))
    kind = helper.np_dtype_to_tensor_dtype(b.dtype(data))
    b.add("Mul", data, b.add("Cast", is_kept, to=kind), output=b.node.output[0])


def _crop(b: Replacement) -> None:
    """Replace by a slice of the last two axes."""
    left, top, right, bottom = b.attribute("border")
    height, width = b.shape(b.input(0))[2:]
    rows, columns = b.attribute("scale", (height - top - bottom, width - left - right))
    bounds = [top, left], [top + rows, left + columns], [2, 3]
    if b.opset < 10:
        names = zip(("starts", "ends", "axes"), bounds, strict=True)
        b.add("Slice", b.input(0), output=b.node.output[0], **dict(names))
        return
    b.add("Slice", b.input(0), *map(b.constant, map(np.array, bounds)), output=b.node.output[0])


def replace_elementwise_norm(b: Replacement) -> bool:
    """Replace a norm by the statistics of each element, which TVM's importer takes for channels.

    MXNet marks norms by the statistics of channels in the same way, which ONNX Runtime refuses.
    """
    data, scale, shift, mean, variance = b.node.input[:5]
    if b.attribute("spatial", 1) or len(b.shape(scale)) != len(b.shape(data)) - 1:
        return False
    epsilon = b.constant(np.array(b.attribute("epsilon", 1e-5), b.dtype(data)))
    deviation = b.add("Sqrt", b.add("Add", variance, epsilon))
    factor = b.add("Div", scale, deviation)
    scaled = b.add("Mul", b.add("Sub", data, mean), factor)
    b.add("Add", scaled, shift, output=b.node.output[0])
    return True


def replace_mask(b: Replacement) -> bool:
    """Replace a Dropout whose mask is read, by the constant mask that ONNX Runtime gives."""
    if not any(b.node.output[1:]):
        return False
    is_kept = b.opset >= _DROPOUT_WITH_MODE
    dtype = np.dtype(np.bool_) if b.opset >= 10 else b.dtype(b.input(0))
    mask = b.constant(np.full(b.shape(b.input(0)), is_kept, dtype))
    b.add("Identity", mask, output=b.node.output[1])
    b.add("Identity", b.input(0), output=b.node.output[0])
    return True


#: Operators that the standard does not have, or has only since a later version.
DROPPED: dict[str, Callable[[Replacement], None]] = {
    "Affine": _affine,
    "Crop": _crop,
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _parametric_softplus,
    "Scale": _scale,
    "ScaledTanh": _scaled_tanh,
    "ThresholdedRelu": _thresholded_relu,
}
