"""Matrices of Winograd's convolution, and straight-line code that multiplies by them.

F(m, 3) computes m outputs of a convolution with three taps from m + 2 products (Winograd,
*Arithmetic Complexity of Computations*, 1980; Lavin and Gray, CVPR'16): A^T [(G g) * (B^T d)]. In
two dimensions each matrix is applied to rows and to columns.
"""

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.tirx import Bind, Var

Array = np.ndarray[Any, np.dtype[np.float64]]

N_TAPS = 3
# Points of interpolation besides infinity. Of those tried for F(4, 3), these magnify rounding
# errors least: 63 times at most, where 0, 1, -1, 2, -2 do 256 times.
_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.625, -0.625, 1.5, -1.5)}
_INTEGER_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 1.0, -1.0, 2.0, -2.0)}


class Matrices(NamedTuple):
    """Matrices for m outputs: of data (m + 2, m + 2), weights (m + 2, 3), outputs (m, m + 2).

    Attributes:
        factors: Factors of the outputs that they give; none for 1.
    """

    data: Array
    weights: Array
    outputs: Array
    factors: tuple[int, ...] = ()

    @property
    def growth(self) -> float:
        """Largest factor by which magnitudes of terms exceed a direct sum's, in 2D."""
        data, weights, outputs = (np.abs(matrix) for matrix in self[:3])
        factors = outputs @ (weights.sum(axis=1) * data.sum(axis=1)) / N_TAPS
        return float(factors.max() ** 2)


def matrices(n_outputs: int) -> Matrices:
    """Return the matrices of F(n_outputs, 3), by the method of Toom and Cook.

    A product of polynomials is interpolated from its values at the points; the transpose of that is
    a correlation. A factor of each point can move between data and weights; it is chosen so that
    the last coefficient of the data is 1.
    """
    points = _POINTS[n_outputs]
    data, last = _of_data(points)
    return Matrices(data, _values(points, N_TAPS) * last, _values(points, n_outputs).T)


def integer_matrices(n_outputs: int) -> Matrices:
    """Return matrices of whole numbers, which give multiples of the outputs.

    With bytes as data and weights, transformed ones have 16 bits.
    """
    points = _INTEGER_POINTS[n_outputs]
    data, last = _of_data(points)
    outputs = _values(points, n_outputs).T * last.T
    factors = [
        math.lcm(*(Fraction(number).limit_denominator(99).denominator for number in row))
        for row in outputs
    ]
    outputs = np.round(outputs * np.array(factors)[:, None])
    return Matrices(np.round(data), _values(points, N_TAPS), outputs, tuple(factors))


def max_exact(n_outputs: int) -> int:
    """Return the bound of sums that follow from 32 bits of a multiple of them.

    An odd factor has an inverse modulo 2**32; each factor of 2 costs a bit.
    """
    return 2**31 // max(factor & -factor for factor in integer_matrices(n_outputs).factors) ** 2


def _of_data(points: Sequence[float]) -> tuple[Array, Array]:
    """Return the matrix of data, and by what its rows were divided, shape (m + 2, 1)."""
    data = np.linalg.inv(_values(points, len(points) + 1)).T
    data[np.abs(data) < 1e-12] = 0.0
    last = np.array([row[np.flatnonzero(row)[-1]] for row in data])[:, None]
    return data / last, last


def _values(points: Sequence[float], n_terms: int) -> Array:
    """Return the powers of the points, and those at infinity."""
    at_infinity = [0.0] * (n_terms - 1) + [1.0]
    return np.array([*([x**i for i in range(n_terms)] for x in points), at_infinity])


@dataclass
class Code:
    """Statements that compute with numbers of one type.

    Vectors of 32-bit integers, such as ``int32x8``, wrap around: TVM tells LLVM that its own sums
    of such integers never do, and so they are added by intrinsics.
    """

    dtype: str
    statements: list[Any] = field(default_factory=list)

    def bind(self, value: Any) -> Var:
        """Compute a value once."""
        variable = Var(f"t{len(self.statements)}", self.dtype)
        self.statements.append(Bind(variable, value))
        return variable

    def transform(self, matrix: Array, n: int, read: Callable[[int, int], Any]) -> list[list[Var]]:
        """Return ``matrix @ tile @ matrix.T`` for a tile of n by n numbers."""
        tile = [[self.bind(read(i, j)) for j in range(n)] for i in range(n)]
        columns = [self._multiply(matrix, [row[j] for row in tile]) for j in range(n)]
        return [
            self._multiply(matrix, [column[i] for column in columns]) for i in range(len(matrix))
        ]

    def divide(self, number: Any, factor: int) -> Var:
        """Divide a multiple of a factor by the factor, given its low 32 bits."""
        shift = (factor & -factor).bit_length() - 1
        inverse = pow(factor >> shift, -1, 2**32)
        if inverse != 1:
            number = self._apply("mul", number, self._const(inverse))
        return self.bind(number >> self._const(shift))

    def _multiply(self, matrix: Array, vector: Sequence[Any]) -> list[Var]:
        """Multiply, sharing what the rows, or the columns, for points x and -x have in common."""
        pairs = _mirrored(matrix.T)
        if pairs:
            return self._multiply(*self._merge(matrix, vector, pairs))
        product: dict[int, Var] = {}
        for i, j in _mirrored(matrix):
            even = self.bind(self._sum((matrix[i] + matrix[j]) / 2, vector))
            odd = self.bind(self._sum((matrix[i] - matrix[j]) / 2, vector))
            product[i] = self.bind(self._apply("add", even, odd))
            product[j] = self.bind(self._apply("sub", even, odd))
        for i in set(range(len(matrix))) - set(product):
            product[i] = self.bind(self._sum(matrix[i], vector))
        return [product[i] for i in range(len(matrix))]

    def _merge(
        self, matrix: Array, vector: Sequence[Any], pairs: Sequence[tuple[int, int]]
    ) -> tuple[Array, list[Any]]:
        """Replace pairs of numbers by their sums and differences."""
        matrix, merged = matrix.copy(), list(vector)
        for i, j in pairs:
            even, odd = (matrix[:, i] + matrix[:, j]) / 2, (matrix[:, i] - matrix[:, j]) / 2
            matrix[:, i], matrix[:, j] = even, odd
            merged[i], merged[j] = (
                self.bind(self._apply("add", vector[i], vector[j])),
                self.bind(self._apply("sub", vector[i], vector[j])),
            )
        return matrix, merged

    def _sum(self, factors: Array, vector: Sequence[Any]) -> Any:
        total: Any = None
        for factor, number in zip(factors.tolist(), vector, strict=True):
            if not factor:
                continue
            size = abs(factor)
            term = number if size == 1.0 else self._apply("mul", number, self._const(size))
            if total is None:
                total = term if factor > 0 else self._apply("sub", self._const(0), term)
            else:
                total = self._apply("add" if factor > 0 else "sub", total, term)
        return total

    def _const(self, number: float) -> Any:
        return tirx.const(int(number) if "int" in self.dtype else number, self.dtype)

    def _apply(self, name: str, left: Any, right: Any) -> Any:
        """Apply an operator by its name in Python and LLVM."""
        kind, _, lanes = self.dtype.partition("x")
        if kind != "int32":
            return getattr(operator, name)(left, right)
        mask = tirx.Broadcast(tirx.const(True, "bool"), int(lanes))
        args = (left, right, mask, tirx.const(int(lanes), "int32"))
        return tirx.call_llvm_pure_intrin(self.dtype, f"llvm.vp.{name}", *args)


def _mirrored(rows: Array) -> list[tuple[int, int]]:
    """Return disjoint pairs of rows that differ in the signs of some, but not all, factors only."""
    pairs: list[tuple[int, int]] = []
    for i, j in itertools.combinations(range(len(rows)), 2):
        even, odd = rows[i] + rows[j], rows[i] - rows[j]
        is_free = not any(i in pair or j in pair for pair in pairs)
        if is_free and even.any() and odd.any() and not (even * odd).any():
            pairs.append((i, j))
    return pairs
