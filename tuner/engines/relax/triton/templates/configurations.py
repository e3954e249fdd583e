"""Decisions of the kernels of a contraction, which are the name of its variant."""

import re
from dataclasses import dataclass
from typing import Literal, Self

#: Axis along which tiles of the output follow each other in the order of blocks.
Order = Literal["rows", "columns"]

#: Name of the variant that the configurations are decisions of.
FAMILY = "triton-gemm"
_NAME = re.compile(
    FAMILY + r"-(\d{1,3})-(\d{1,3})-(\d{1,4})-(\d)-(\d\d?)-s([kl])(\d{1,3})-(rows|columns)"
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
        n_splits: Parts of the sums that blocks of their own compute.
        is_one_kernel: True if the last block of a tile adds the parts, False for a second kernel.
        order: Tiles of neighbouring blocks: the next rows, or the next columns.
    """

    rows: int
    columns: int
    steps: int
    n_stages: int
    n_warps: int
    n_splits: int = 1
    is_one_kernel: bool = False
    order: Order = "rows"

    @classmethod
    def named(cls, name: str) -> Self | None:
        """Return the configuration of a name; None for another kind of variant."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        rows, columns, steps, n_stages, n_warps = map(int, match.groups()[:5])
        order: Order = "rows" if match[8] == "rows" else "columns"
        return cls(rows, columns, steps, n_stages, n_warps, int(match[7]), match[6] == "l", order)

    @property
    def name(self) -> str:
        """Name with every decision."""
        tile = f"{self.rows}-{self.columns}-{self.steps}"
        splits = f"s{'l' if self.is_one_kernel else 'k'}{self.n_splits}"
        return f"{FAMILY}-{tile}-{self.n_stages}-{self.n_warps}-{splits}-{self.order}"
