"""Converters of ONNX operators that TVM's importer lacks, converts wrongly or to kernels."""

from collections.abc import Callable
from typing import Any

from tuner.engines.relax.converters.elementary import convert_clip, convert_pad
from tuner.engines.relax.converters.recurrent import converter_of

#: Converter by name of the operator: builder, inputs, attributes and opset to an expression.
CONVERTERS: dict[str, Callable[[Any, Any, dict[str, Any], int], Any]] = {
    "Clip": convert_clip,
    "GRU": converter_of("GRU"),
    "LSTM": converter_of("LSTM"),
    "Pad": convert_pad,
    "RNN": converter_of("RNN"),
}
