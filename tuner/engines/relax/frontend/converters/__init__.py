"""Converters of ONNX operators that TVM's importer lacks, converts wrongly or to kernels."""

from collections.abc import Callable
from typing import Any

from tvm import relax

from tuner.engines.relax.frontend.converters.einsum import convert_einsum
from tuner.engines.relax.frontend.converters.elementary import (
    convert_clip,
    convert_pad,
    convert_sequence_at,
    convert_sequence_erase,
    convert_sequence_insert,
    convert_sequence_length,
)
from tuner.engines.relax.frontend.converters.elementwise import (
    convert_cast,
    convert_dynamic_quantize,
    convert_extreme,
    convert_log_sum_exp,
    convert_mean,
    convert_mish,
    convert_one_hot,
    convert_pow,
    convert_prelu,
    convert_quantize,
    convert_reduction,
    convert_scatter,
    convert_sign,
    convert_softplus,
    convert_sum,
    convert_thresholded,
    convert_topk,
    fold_with,
    in_float64,
    saturated,
    square,
)
from tuner.engines.relax.frontend.converters.recurrent.converters import converter_of
from tuner.engines.relax.frontend.converters.regions import convert_grid_sample, convert_roi_align
from tuner.engines.relax.frontend.converters.resize import convert_resize, convert_upsample

#: Converter by name of the operator: builder, inputs, attributes and opset to an expression, or
#: None for TVM's converter.
CONVERTERS: dict[str, Callable[[Any, Any, dict[str, Any], int], Any]] = {
    "Cast": convert_cast,
    "Clip": convert_clip,
    "DynamicQuantizeLinear": convert_dynamic_quantize,
    "Einsum": convert_einsum,
    "GRU": converter_of("GRU"),
    "GridSample": convert_grid_sample,
    "LSTM": converter_of("LSTM"),
    "Max": fold_with(relax.op.maximum),
    "Mean": convert_mean,
    "Min": fold_with(relax.op.minimum),
    "Mish": convert_mish,
    "OneHot": convert_one_hot,
    "PRelu": convert_prelu,
    "Pad": convert_pad,
    "Pow": convert_pow,
    "QuantizeLinear": convert_quantize,
    "RNN": converter_of("RNN"),
    "ReduceL1": saturated(convert_sum(relax.op.abs, relax.op.abs)),
    "ReduceL2": in_float64(convert_sum(square, relax.op.abs, relax.op.sqrt)),
    "ReduceLogSum": in_float64(convert_sum(lambda x: x, relax.op.log, relax.op.log)),
    "ReduceLogSumExp": in_float64(convert_log_sum_exp),
    "ReduceMax": convert_extreme(relax.op.max),
    "ReduceMean": in_float64(convert_reduction(relax.op.mean, 18)),
    "ReduceMin": convert_extreme(relax.op.min),
    "ReduceProd": saturated(convert_reduction(relax.op.prod, 18)),
    "ReduceSum": saturated(convert_reduction(relax.op.sum, 13)),
    "ReduceSumSquare": saturated(convert_sum(square, square)),
    "Resize": convert_resize,
    "RoiAlign": convert_roi_align,
    "Scatter": convert_scatter,
    "SequenceAt": convert_sequence_at,
    "SequenceErase": convert_sequence_erase,
    "SequenceInsert": convert_sequence_insert,
    "SequenceLength": convert_sequence_length,
    "Sign": convert_sign,
    "Softplus": convert_softplus,
    "Sum": fold_with(relax.op.add),
    "ThresholdedRelu": convert_thresholded,
    "TopK": convert_topk,
    "Upsample": convert_upsample,
}
