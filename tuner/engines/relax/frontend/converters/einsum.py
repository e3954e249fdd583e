"""Converter of Einsum to a matrix product, which layouts, variants and attention are found in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Self

from tvm import relax, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from tuner.engines.relax.frontend.converters.operands import as_text

_FLOATS = {"float16", "float32", "float64"}
_N_OPERANDS = 2


@dataclass(frozen=True)
class _Product:
    """An equation of two operands as a product of matrices.

    Attributes:
        left: Labels of the operand whose rows are rows of the product.
        right: Labels of the other.
        result: Labels of the result.
        is_swapped: True if ``left`` is the second operand.
        n_elements: Size of each label.
    """

    left: str
    right: str
    result: str
    is_swapped: bool
    n_elements: Mapping[str, int]

    @classmethod
    def of(cls, equation: str, shapes: Sequence[Sequence[int]]) -> Self | None:
        """Return an equation as a product; None if it is another one.

        Args:
            equation: ``ij,jk->ik``; without an arrow the result has the labels that occur once.
            shapes: Shapes of the operands.
        """
        operands, arrow, result = equation.replace(" ", "").partition("->")
        terms = operands.split(",")
        if len(terms) != _N_OPERANDS or not operands.replace(",", "").isalpha():
            return None
        if not arrow:
            result = "".join(sorted(each for each in set(operands) if operands.count(each) == 1))
            result = result.replace(",", "")
        sizes: dict[str, int] = {}
        for term, shape in zip(terms, shapes, strict=True):
            if len(set(term)) != len(term) or len(term) != len(shape):
                return None
            for label, size in zip(term, shape, strict=True):
                if sizes.setdefault(label, size) != size:
                    return None
        first = next((label for label in result if (label in terms[0]) != (label in terms[1])), "")
        is_swapped = first in terms[1]
        left, right = reversed(terms) if is_swapped else terms
        product = cls(left, right, result, is_swapped, sizes)
        return product if product._is_one() else None

    @property
    def batch(self) -> str:
        """Labels of both operands and of the result."""
        return "".join(each for each in self.result if each in self.left and each in self.right)

    @property
    def rows(self) -> str:
        """Labels of the left operand and of the result."""
        return "".join(each for each in self.result if each not in self.right)

    @property
    def columns(self) -> str:
        """Labels of the right operand and of the result."""
        return "".join(each for each in self.result if each not in self.left)

    @property
    def terms(self) -> str:
        """Labels that are summed over."""
        return "".join(each for each in self.left if each not in self.result)

    def size(self, labels: str) -> int:
        """Return the number of elements of an axis that merges labels."""
        return prod(self.n_elements[label] for label in labels)

    def _is_one(self) -> bool:
        """Return whether all sums are over both operands, and neither matrix is a vector."""
        lone = set(self.left) ^ set(self.right)
        return (
            bool(self.terms)
            and lone <= set(self.result) <= set(self.n_elements)
            and self.size(self.rows) > 1
            and self.size(self.columns) > 1
        )


def convert_einsum(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
    """Convert products of two matrices, of a batch or not; TVM converts other equations."""
    operands = list(inputs)
    product = None
    if all(_is_fixed(operand) for operand in operands):
        shapes = [[int(size) for size in operand.ty.shape] for operand in operands]
        product = _Product.of(as_text(attrs["equation"]), shapes)
    if product is None:
        convert = onnx_frontend.Einsum.get_converter(opset)
        return convert(builder, inputs, attrs, [{}, {}])
    left, right = reversed(operands) if product.is_swapped else operands
    batch, rows, columns, terms = product.batch, product.rows, product.columns, product.terms
    left = _merged(builder, product, left, product.left, (batch, rows, terms))
    right = _merged(builder, product, right, product.right, (batch, terms, columns))
    matrices = builder.normalize(relax.op.matmul(left, right))
    labels = batch + rows + columns
    shape = [product.n_elements[label] for label in labels]
    result = _reshaped(builder, matrices, shape)
    return _permuted(builder, result, labels, product.result)


def _is_fixed(operand: relax.Expr) -> bool:
    """Return whether an operand has floats and a fixed shape."""
    kind = operand.ty
    return (
        isinstance(kind, relax.TensorType)
        and isinstance(kind.shape, relax.ShapeExpr)
        and str(kind.dtype) in _FLOATS
        and all(isinstance(size, tirx.IntImm) for size in kind.shape.values)
    )


def _merged(
    builder: Any, product: _Product, operand: relax.Expr, labels: str, groups: tuple[str, str, str]
) -> relax.Expr:
    """Return an operand with the axes of a batch, and one axis for each other group of labels."""
    batch, *others = groups
    operand = _permuted(builder, operand, labels, "".join(groups))
    shape = [product.n_elements[label] for label in batch]
    return _reshaped(builder, operand, [*shape, *map(product.size, others)])


def _permuted(builder: Any, operand: relax.Expr, labels: str, order: str) -> relax.Expr:
    if labels == order:
        return operand
    axes = [labels.index(label) for label in order]
    return builder.normalize(relax.op.permute_dims(operand, axes))


def _reshaped(builder: Any, operand: relax.Expr, shape: Sequence[int]) -> relax.Expr:
    if list(map(int, operand.ty.shape)) == list(shape):
        return operand
    return builder.normalize(relax.op.reshape(operand, shape))
