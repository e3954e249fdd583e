"""Decisions of kernels, which are the names of variants."""

import re
from dataclasses import astuple, dataclass, fields
from typing import Any, ClassVar, Literal, Self

#: Axis along which tiles of the output follow each other in the order of blocks.
Order = Literal["rows", "columns"]


@dataclass(frozen=True)
class Decisions:
    """Decisions of a kernel, which are numbers that follow each other in its name.

    Attributes:
        family: Name of the variant that they are decisions of.
        pattern: Regular expression of the rest of a name that is spelled in another way, with a
            group for each decision: a number, a word, or ``k`` and ``l`` for two kernels and one.
    """

    family: ClassVar[str]
    pattern: ClassVar[str] = ""

    @classmethod
    def named(cls, name: str) -> Self | None:
        """Return the decisions of a name; None for another kind of variant."""
        numbers = "-".join(rf"(?P<{field.name}>\d{{1,4}})" for field in fields(cls))
        match = re.fullmatch(f"{cls.family}-{cls.pattern or numbers}", name)
        if match is None:
            return None
        values: dict[str, Any] = {key: text for key, text in match.groupdict().items() if text}
        for key, text in values.items():
            values[key] = {"k": False, "l": True}.get(text, int(text) if text.isdigit() else text)
        return cls(**values)

    @property
    def name(self) -> str:
        """Name with every decision."""
        return "-".join([self.family, *map(str, astuple(self))])


@dataclass(frozen=True)
class Configuration(Decisions):
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

    family = "triton-gemm"
    pattern = (
        r"(?P<rows>\d{1,3})-(?P<columns>\d{1,3})-(?P<steps>\d{1,4})-(?P<n_stages>\d)"
        r"-(?P<n_warps>\d\d?)-s(?P<is_one_kernel>[kl])(?P<n_splits>\d{1,3})"
        r"-(?P<order>rows|columns)"
    )
    rows: int
    columns: int
    steps: int
    n_stages: int
    n_warps: int
    n_splits: int = 1
    is_one_kernel: bool = False
    order: Order = "rows"

    @property
    def name(self) -> str:
        """Name with every decision."""
        tile = f"{self.rows}-{self.columns}-{self.steps}"
        splits = f"s{'l' if self.is_one_kernel else 'k'}{self.n_splits}"
        return f"{self.family}-{tile}-{self.n_stages}-{self.n_warps}-{splits}-{self.order}"
