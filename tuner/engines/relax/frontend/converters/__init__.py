"""Converters of ONNX operators that TVM's importer lacks, converts wrongly or to kernels."""

from collections.abc import Callable
from typing import Any

from tvm import relax

from tuner.engines.relax.frontend.converters import elementary, elementwise
from tuner.engines.relax.frontend.converters.einsum import convert_einsum
from tuner.engines.relax.frontend.converters.recurrent.converters import converter_of
from tuner.engines.relax.frontend.converters.regions import convert_grid_sample, convert_roi_align
from tuner.engines.relax.frontend.converters.resize import convert_resize, convert_upsample

#: Converter by name of the operator: builder, inputs, attributes and opset to an expression, or
#: None for TVM's converter.
CONVERTERS: dict[str, Callable[[Any, Any, dict[str, Any], int], Any]] = {
    "Cast": elementwise.convert_cast,
    "Clip": elementary.convert_clip,
    "DynamicQuantizeLinear": elementwise.convert_dynamic_quantize,
    "Einsum": convert_einsum,
    "GRU": converter_of("GRU"),
    "GridSample": convert_grid_sample,
    "LSTM": converter_of("LSTM"),
    "Max": elementwise.fold_with(relax.op.maximum),
    "Mean": elementwise.convert_mean,
    "Min": elementwise.fold_with(relax.op.minimum),
    "Mish": elementwise.convert_mish,
    "OneHot": elementwise.convert_one_hot,
    "PRelu": elementwise.convert_prelu,
    "Pad": elementary.convert_pad,
    "Pow": elementwise.convert_pow,
    "QuantizeLinear": elementwise.convert_quantize,
    "RNN": converter_of("RNN"),
    "ReduceL1": elementwise.saturated(elementwise.convert_sum(relax.op.abs, relax.op.abs)),
    "ReduceL2": elementwise.in_float64(
        elementwise.convert_sum(elementwise.square, relax.op.abs, relax.op.sqrt)
    ),
    "ReduceLogSum": elementwise.in_float64(
        elementwise.convert_sum(lambda x: x, relax.op.log, relax.op.log)
    ),
    "ReduceLogSumExp": elementwise.in_float64(elementwise.convert_log_sum_exp),
    "ReduceMax": elementwise.convert_extreme(relax.op.max),
    "ReduceMean": elementwise.in_float64(elementwise.convert_reduction(relax.op.mean, 18)),
    "ReduceMin": elementwise.convert_extreme(relax.op.min),
    "ReduceProd": elementwise.saturated(elementwise.convert_reduction(relax.op.prod, 18)),
    "ReduceSum": elementwise.saturated(elementwise.convert_reduction(relax.op.sum, 13)),
    "ReduceSumSquare": elementwise.saturated(
        elementwise.convert_sum(elementwise.square, elementwise.square)
    ),
    "Resize": convert_resize,
    "RoiAlign": convert_roi_align,
    "Scatter": elementwise.convert_scatter,
    "SequenceAt": elementary.convert_sequence_at,
    "SequenceErase": elementary.convert_sequence_erase,
    "SequenceInsert": elementary.convert_sequence_insert,
    "SequenceLength": elementary.convert_sequence_length,
    "Sign": elementwise.convert_sign,
    "Softplus": elementwise.convert_softplus,
    "Sum": elementwise.fold_with(relax.op.add),
    "ThresholdedRelu": elementwise.convert_thresholded,
    "TopK": elementwise.convert_topk,
    "Upsample": convert_upsample,
}
