"""Decisions of the kernels of a contraction, which are the name of its variant."""

import re
from dataclasses import dataclass
from typing import Literal, Self

#: Axis along which tiles of the output follow each other in the order of blocks.
Order = Literal["rows", "columns"]

#: Name of the variant that the configurations are decisions of.
FAMILY = "triton-gemm"
_NAME = re.compile(
    FAMILY + r"-(\d{1,3})-(\d{1,3})-(\d{1,4})-(\d)-(\d\d?)-sk(\d{1,3})-(rows|columns)"
)


@dataclass(frozen=True)
class Configuration:
    """Decisions of a contraction.

    Attributes:
        rows: Rows of a tile of the output, a power of two; 1 for sums without tensor cores.
        columns: Columns of a tile, a power of two.
        steps: Products of an element in one turn of the loop, a power of two.
        n_stages: Turns of the loop whose operands are loaded ahead.
        n_warps: Warps of a block.
        n_splits: Parts of the sums that blocks of their own compute; a second kernel adds them.
        order: Tiles of neighbouring blocks: the next rows, or the next columns.
    """

    rows: int
    columns: int
    steps: int
    n_stages: int
    n_warps: int
    n_splits: int = 1
    order: Order = "rows"

    @classmethod
    def named(cls, name: str) -> Self | None:
        """Return the configuration of a name; None for another kind of variant."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        rows, columns, steps, n_stages, n_warps, n_splits = map(int, match.groups()[:-1])
        order: Order = "rows" if match[7] == "rows" else "columns"
        return cls(rows, columns, steps, n_stages, n_warps, n_splits, order)

    @property
    def name(self) -> str:
        """Name with every decision."""
        tile = f"{self.rows}-{self.columns}-{self.steps}"
        return f"{FAMILY}-{tile}-{self.n_stages}-{self.n_warps}-sk{self.n_splits}-{self.order}"
