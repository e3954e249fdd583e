"""Matrices of Winograd's convolution, and straight-line code that multiplies by them.

F(m, 3) computes m outputs of a convolution with three taps from m + 2 products (Winograd,
*Arithmetic Complexity of Computations*, 1980; Lavin and Gray, CVPR'16): A^T [(G g) * (B^T d)]. In
two dimensions each matrix is applied to rows and to columns.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.tirx import Bind, Var

Array = np.ndarray[Any, np.dtype[np.float64]]

N_TAPS = 3
# Points of interpolation besides infinity. Of those tried for F(4, 3), these magnify rounding
# errors least: 63 times at most, where 0, 1, -1, 2, -2 do 256 times.
_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.625, -0.625, 1.5, -1.5)}


class Matrices(NamedTuple):
    """Matrices for m outputs: of data (m + 2, m + 2), weights (m + 2, 3), outputs (m, m + 2)."""

    data: Array
    weights: Array
    outputs: Array

    @property
    def growth(self) -> float:
        """Largest factor by which the magnitudes of terms exceed those of a direct sum, in 2D."""
        data, weights, outputs = (np.abs(matrix) for matrix in self)
        factors = outputs @ (weights.sum(axis=1) * data.sum(axis=1)) / N_TAPS
        return float(factors.max() ** 2)


def matrices(n_outputs: int) -> Matrices:
    """Return the matrices of F(n_outputs, 3), by the method of Toom and Cook.

    A product of polynomials is interpolated from its values at the points; the transpose of that is
    a correlation. A factor of each point can move between data and weights; it is chosen so that
    the last coefficient of the data is 1.
    """
    points = _POINTS[n_outputs]

    def values(n_terms: int) -> Array:
        at_infinity = [0.0] * (n_terms - 1) + [1.0]
        return np.array([*([x**i for i in range(n_terms)] for x in points), at_infinity])

    data = np.linalg.inv(values(len(points) + 1)).T
    data[np.abs(data) < 1e-12] = 0.0
    last = np.array([row[np.flatnonzero(row)[-1]] for row in data])[:, None]
    return Matrices(data / last, values(N_TAPS) * last, values(n_outputs).T)


@dataclass
class Code:
    """Statements that compute with numbers of one type."""

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

    def _multiply(self, matrix: Array, vector: Sequence[Any]) -> list[Var]:
        """Multiply, sharing what the rows, or the columns, for points x and -x have in common."""
        pairs = _mirrored(matrix.T)
        if pairs:
            return self._multiply(*self._merge(matrix, vector, pairs))
        product: dict[int, Var] = {}
        for i, j in _mirrored(matrix):
            even = self.bind(self._sum((matrix[i] + matrix[j]) / 2, vector))
            odd = self.bind(self._sum((matrix[i] - matrix[j]) / 2, vector))
            product[i], product[j] = self.bind(even + odd), self.bind(even - odd)
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
                self.bind(vector[i] + vector[j]),
                self.bind(vector[i] - vector[j]),
            )
        return matrix, merged

    def _sum(self, factors: Array, vector: Sequence[Any]) -> Any:
        total: Any = None
        for factor, number in zip(factors.tolist(), vector, strict=True):
            if not factor:
                continue
            term = number if abs(factor) == 1.0 else number * tirx.const(abs(factor), self.dtype)
            if total is None:
                total = term if factor > 0 else tirx.const(0.0, self.dtype) - term
            else:
                total = total + term if factor > 0 else total - term
        return total


def _mirrored(rows: Array) -> list[tuple[int, int]]:
    """Return disjoint pairs of rows that differ in the signs of some, but not all, factors only."""
    pairs: list[tuple[int, int]] = []
    for i, j in itertools.combinations(range(len(rows)), 2):
        even, odd = rows[i] + rows[j], rows[i] - rows[j]
        is_free = not any(i in pair or j in pair for pair in pairs)
        if is_free and even.any() and odd.any() and not (even * odd).any():
            pairs.append((i, j))
    return pairs
