"""Nodes that replace a quantised node of an ONNX graph."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from tuner.networks.onnx.graph import Array
from tuner.networks.onnx.node_builder import NodeBuilder


class QuantisedBuilder(NodeBuilder):
    """Nodes that replace one quantised node.

    Attributes:
        is_float: True if all that reads its output converts it to float32.
        sum_type: Type of the sums of products.
    """

    def __init__(
        self,
        node: onnx.NodeProto,
        types: Mapping[str, tuple[int, int, int]],
        graph: onnx.GraphProto,
        arrays: Mapping[str, Callable[[], Array]],
        *,
        is_float: bool = False,
    ) -> None:
        super().__init__(node, graph)
        self.is_float = is_float
        self.sum_type = int(TensorProto.FLOAT)
        self._types = types
        self._arrays = arrays

    def kind_of(self, *names: str) -> int:
        """Return the element type of the last of some values that is known.

        It is uint8, the default of quantised operators, if that of none is.
        """
        kinds = [self._types[name][0] for name in names if name in self._types]
        return kinds[-1] if kinds else int(TensorProto.UINT8)

    def rank_of(self, name: str) -> int:
        """Return the rank of a value; 4, that of images, if it is unknown."""
        return self._types[name][1] if name in self._types else 4

    def length_of(self, name: str) -> int:
        """Return the length of a value along the first axis; 1 if it is unknown."""
        return self._types[name][2] if name in self._types else 1

    def array(self, index: int) -> Array | None:
        """Return the value of an input that is constant."""
        read = self._arrays.get(self.input(index))
        return None if read is None else read()

    def centred(self, value: str, zero: str) -> str:
        """Return a quantised value in the type of the sums, minus its zero point."""
        number = self.add("Cast", value, to=self.sum_type)
        if not zero:
            return number
        return self.add("Sub", number, self.add("Cast", zero, to=self.sum_type))

    def whole(self, value: str) -> None:
        """Give the output a sum that is a whole number: as int32 unless none needs it.

        A sum above the largest int32 becomes its low bits.
        """
        if self.is_float:
            self.add("Identity", value, output=self.node.output[0])
            return
        if self.sum_type == TensorProto.DOUBLE:
            value = self.add("Cast", value, to=TensorProto.INT64)
        self.add("Cast", value, output=self.node.output[0], to=TensorProto.INT32)

    def saturated(self, value: str, zero: str, kind: int, output: str) -> None:
        """Round a float32 value, add a zero point, and convert it to a quantised type."""
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        zero = zero or self.constant(np.zeros((), dtype))
        one = self.constant(np.ones((), np.float32))
        self.add("QuantizeLinear", value, one, zero, output=output)
