"""Softmax whose rows without a score hold a number, as networks with masks spell it.

All scores of a row may be hidden by a mask. torch tests whether any score is not minus infinity,
ONNX models whether the softmax is not a number. Fused by rule each is several kernels, and keeps
attention from being one.
"""

import math
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Op, register_op_attr
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.visitor import CallVisitor, dtype_of, name_of
from tuner.engines.relax.ir.tensor_types import shape_of

#: Name of the operator: a softmax along the last axis.
NAME = "tuner.masked_softmax"


@dataclass(frozen=True)
class Fill:
    """Content of rows without a score.

    Attributes:
        value: Their elements.
        replaces_nan: True if rows that are not numbers hold it, too.
    """

    value: float
    replaces_nan: bool


def masked_softmax(scores: relax.Expr, fill: Fill) -> relax.Call:
    """Return a softmax along the last axis whose rows of minus infinity hold a number."""
    if NAME not in Op.list_op_names():
        tvm_ffi.get_global_func("ir.RegisterOp")(NAME, "A softmax of rows that may be masked.")
        register_op_attr(NAME, "FInferType", lambda call, _: call.args[0].ty)
        register_op_attr(NAME, "FPurity", True)
    return relax.Call(Op.get(NAME), [scores], tvm.ir.make_node("ir.DictAttrs", **vars(fill)))


def fill_of(call: relax.Call) -> Fill:
    """Return the fill of a call of the operator."""
    return Fill(float(call.attrs["value"]), bool(call.attrs["replaces_nan"]))


@mutator
class MaskedSoftmaxFinder(CallVisitor):
    """Mutator that joins a softmax and the choice that fills its masked rows."""

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Replace one choice."""
        if name_of(call) != "where" or dtype_of(call) == "float64":
            return call
        condition, fill, weights = call.args
        softmax = self.producer(weights, "relax.nn.softmax")
        filled = self.producer(fill, "relax.full_like", "relax.full")
        value = self.scalar(fill if filled is None else filled.args[1])
        if softmax is None or value is None or shape_of(softmax) != shape_of(call):
            return call
        scores = softmax.args[0]
        if int(softmax.attrs.axis) not in (-1, len(shape_of(scores)) - 1):
            return call
        test: Any = self.producer(condition)
        if name_of(test) == "isnan" and self.is_same(test.args[0], weights):
            return masked_softmax(scores, Fill(value, replaces_nan=True))
        if self._is_masked_row(condition, scores):
            return masked_softmax(scores, Fill(value, replaces_nan=False))
        return call

    def _is_masked_row(self, condition: relax.Expr, scores: relax.Expr) -> bool:
        """Return whether a condition tells of a row that all its scores are minus infinity."""
        row, is_not_any = self._stripped(condition)
        if name_of(row) != ("max" if is_not_any else "min") or not row.attrs.keepdims:
            return False
        rank = len(shape_of(scores))
        if [int(axis) % rank for axis in row.attrs.axis or ()] != [rank - 1]:
            return False
        test, is_inverse = self._stripped(row.args[0])
        name = "equal" if is_inverse == is_not_any else "not_equal"
        return (
            name_of(test) == name
            and self.is_same(test.args[0], scores)
            and self.scalar(test.args[1]) == -math.inf
        )

    def _stripped(self, expr: relax.Expr) -> tuple[Any, bool]:
        """Return what a truth value follows from, and whether it is the inverse of that."""
        call: Any = self.producer(expr)
        is_inverse = False
        while name_of(call) in ("logical_not", "astype"):
            is_inverse ^= name_of(call) == "logical_not"
            call = self.producer(call.args[0])
        return call, is_inverse
