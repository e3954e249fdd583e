"""Converters of ONNX operators that TVM's importer lacks or converts wrongly."""

from collections.abc import Callable
from typing import Any

from tuner.engines.relax.converters.recurrent import converter_of

#: Converter by name of the operator: builder, inputs, attributes and opset to an expression.
CONVERTERS: dict[str, Callable[[Any, Any, dict[str, Any], int], Any]] = {
    "GRU": converter_of("GRU"),
    "LSTM": converter_of("LSTM"),
    "RNN": converter_of("RNN"),
}
