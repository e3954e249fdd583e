"""Answers that explain a difference from ONNX Runtime: in float64, and its own unoptimised ones.

A network that sorts or compares has inputs for which the last bit decides, such as two scores of a
TopK that are less than one rounding of float32 apart. Float64 tells which of two runtimes errs. Of
a quantised network, every layer has such ties, and one code that differs changes many behind it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tuner.compile.agreement import OutputCheck, compare_output


class GatherElements(OpRun):  # type: ignore[misc]  # untyped package
    """The operator for any number of elements; onnx's own takes 64."""

    op_domain = ""

    def _run(self, data: Any, indices: Any, axis: int = 0) -> tuple[Any]:
        return (np.take_along_axis(data, indices, axis),)


def agrees_with_float64(
    model: onnx.ModelProto,
    arrays: Mapping[str, Any],
    outputs: Sequence[Any],
    peer_outputs: Sequence[Any],
) -> bool:
    """Return whether outputs agree with those of onnx's evaluator in float64.

    An output beyond the tolerance agrees if that of the peer is at least as far from float64: the
    network then multiplies errors of float32 in any runtime.

    Args:
        model: Network that computes in float32.
        arrays: Inputs by name.
        outputs: Outputs of a library, in order.
        peer_outputs: Outputs of ONNX Runtime, in order.
    """
    network = ReferenceEvaluator(in_float64(model), new_ops=[GatherElements])
    answers = network.run(None, {name: _widened(array) for name, array in arrays.items()})
    return all(
        _is_as_near(output, peer_output, answer.astype(output.dtype))
        for output, peer_output, answer in zip(outputs, peer_outputs, answers, strict=True)
    )


def _is_as_near(output: Any, peer_output: Any, answer: Any) -> bool:
    check = compare_output("", output, answer, "float32")
    peer = compare_output("", peer_output, answer, "float32")
    return check.agrees or (not check.problem and check.worst <= peer.worst < np.inf)


def compare_unoptimised(
    model: str, arrays: Mapping[str, Any], precision: str
) -> tuple[OutputCheck, ...]:
    """Compare ONNX Runtime without its optimisations with ONNX Runtime.

    Args:
        model: Path of the network.
        arrays: Inputs by name.
        precision: Coarsest precision that the network computes in.
    """
    plain = run_onnxruntime(model, arrays, is_optimised=False)
    optimised = run_onnxruntime(model, arrays)
    return tuple(
        compare_output(name, plain[name], expected, precision)
        for name, expected in optimised.items()
    )


def run_onnxruntime(
    model: str, arrays: Mapping[str, Any], *, is_optimised: bool = True
) -> dict[str, Any]:
    """Return the outputs of a network in ONNX Runtime, by name.

    Args:
        model: Path of the network.
        arrays: Inputs by name.
        is_optimised: False to compute the graph as it is in the file.
    """
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if is_optimised else levels.ORT_DISABLE_ALL
    )
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(arrays)), strict=True))


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a network whose inputs, weights, constants and casts of float32 are of float64.

    Nodes in the bodies of others stay as they are.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for tensor in wide.graph.initializer:
        _widen(tensor)
    for node in wide.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen(attribute.t)
            elif node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    for info in (*wide.graph.input, *wide.graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    del wide.graph.value_info[:]
    return wide


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _widened(array: Any) -> Any:
    return array.astype(np.float64) if array.dtype == np.float32 else array
