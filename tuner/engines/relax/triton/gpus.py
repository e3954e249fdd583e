"""Model of a GPU: what loads, products and blocks of Triton's kernels cost.

Numbers of a GPU are of its data sheet. The other constants hold for all: they were fitted to 4,869
kernels that ran in graphs on an H200 (decision 0117), with weights that were not in a cache.
Functions take numbers or arrays, one element for each configuration.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

#: Bytes of an element of an operand.
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1}
#: Launch of a kernel in a graph.
LAUNCH_SECS = 0.75e-6
#: Time from the request of operands to their arrival, and what it takes longer from memory.
LATENCY_SECS, MEMORY_LATENCY_SECS = 0.615e-6, 0.37e-6
#: Start and end of four warps of a multiprocessor.
WARPS_SECS = 0.145e-6
#: Share of the bandwidth of a data sheet that loads of weights reach.
MEMORY_SHARE = 0.96
#: Threads of a warp, and the warps that products of groups of warps need.
WARP, GROUP_WARPS = 32, 4
# Bytes per cycle that tensor cores of a multiprocessor read from shared memory.
_OPERAND_BYTES = 128
# Shares of bandwidths that are reached. What overlaps is added as squares, which is too much for
# equal times, so that a share may be above 1.
_FILL_SHARE, _OPERAND_SHARE = 1.65, 0.81
# Share of the peak that products of single warps reach, and the same on GPUs with group products.
_WARP_SHARE, _WARP_SHARE_BESIDE_GROUPS = 0.8, 0.2
# Rows of the products of a group, and those and the columns of a warp.
_GROUP_ROWS, _WARP_ROWS, _WARP_COLUMNS = 64, 16, 8
# Times that the warps of a block are doubled.
_MAX_DOUBLINGS = 3
# Products of tf32 for one of float32.
_FLOAT32_PRODUCTS = 3
# Registers of a multiprocessor, those of a thread beside its sums, and the most of a thread.
_REGISTERS, _BASE_REGISTERS, _MAX_REGISTERS = 65536, 40, 255
_RESERVED_SHARED_BYTES = 1024


# Without tensor cores: a turn, and an element of a thread.
_SUM_TURN_SECS, _SUM_ELEMENT_SECS = 120e-9, 16.7e-9
#: Bytes per second of a kernel that reads and writes through the cache.
CACHE_BYTES_PER_SEC = 7.8e12
# The second kernel of shared sums: itself, and each part.
_ADD_SECS, _ADD_PART_SECS = 0.93e-6, 0.068e-6
# The last block that arrives: its stores, its count and its loads are a trip to the cache each. It
# loads after all of them, so that bytes per second are fewer.
_ARRIVE_SECS, _ARRIVE_BYTES_PER_SEC = 1.1e-6, 1.4e12
# The same for a tile, which it copies to shared memory, and what each further round of copies adds
# to their time: fitted to the loads in the binaries of 154 kernels that a second one replaces.
_COPIED_BYTES_PER_SEC, _ROUND_SHARE = 2.66e12, 0.072


@dataclass(frozen=True)
class Gpu:
    """Numbers of a GPU, of data sheets.

    Attributes:
        hertz: Clock.
        flops: Products and sums of float16 on tensor cores, per second.
        bytes_per_sec: Bandwidth of the memory.
        fill_bytes: Bytes per cycle that a multiprocessor loads from the second-level cache.
        shared_bytes: Shared memory of a block.
        n_warps: Warps of a multiprocessor.
        has_groups: True if groups of four warps multiply 64 rows from shared memory.
    """

    n_multiprocessors: int
    hertz: float
    flops: float
    bytes_per_sec: float
    fill_bytes: int
    shared_bytes: int
    n_warps: int
    has_groups: bool = False

    def n_resident(self, shared_bytes: Any, kept: Any, n_warps: Any) -> Any:
        """Return the blocks that fit a multiprocessor.

        Args:
            shared_bytes: Shared memory of a block.
            kept: Numbers that a thread keeps.
            n_warps: Warps of a block.
        """
        registers = np.minimum(kept + _BASE_REGISTERS, _MAX_REGISTERS) * WARP * n_warps
        shared = (self.shared_bytes + _RESERVED_SHARED_BYTES) / (
            shared_bytes + _RESERVED_SHARED_BYTES
        )
        fitting = np.minimum(np.minimum(shared, _REGISTERS / registers), self.n_warps / n_warps)
        return np.maximum(np.floor(fitting), 1)

    def waves(self, n_blocks: Any, n_resident: Any) -> list[tuple[Any, Any]]:
        """Return how many waves a grid has, and the blocks of a multiprocessor in each.

        Returns:
            That of the full waves, and that of the last one.
        """
        n_full = np.floor(n_blocks / (self.n_multiprocessors * n_resident))
        rest = np.ceil(n_blocks / self.n_multiprocessors - n_full * n_resident)
        return [(n_full, n_resident), (np.minimum(rest, 1), rest)]

    def fill_secs(self, n_bytes: Any) -> Any:
        """Estimate the time in which a multiprocessor loads bytes from the cache."""
        return n_bytes / (self.fill_bytes * _FILL_SHARE * self.hertz)

    def product_secs(self, dtype: str, sizes: tuple[Any, Any, Any], n_warps: Any) -> Any:
        """Estimate the time of a product of tiles on a multiprocessor.

        Args:
            dtype: Type of the operands.
            sizes: Rows, columns and steps.
            n_warps: Warps of the block.
        """
        rows, columns, steps = sizes
        is_grouped = self._is_grouped(rows, n_warps)
        share = _WARP_SHARE_BESIDE_GROUPS if self.has_groups else _WARP_SHARE
        flops = self.flops / self.n_multiprocessors * 2 / BYTES[dtype]
        flops /= _FLOAT32_PRODUCTS if dtype == "float32" else 1
        # Units beside each other read the same rows, units below each other the same columns.
        n_units = np.where(is_grouped, np.maximum(n_warps / GROUP_WARPS, 1), n_warps)
        n_tall = np.maximum(rows / np.where(is_grouped, _GROUP_ROWS, _WARP_ROWS), 1)
        below = np.where(is_grouped, np.minimum(n_units, n_tall), _warps_below(sizes, n_warps))
        n_read = rows * n_units / below + columns * np.where(is_grouped, n_tall, below)
        read = n_read * steps * BYTES[dtype] / (_OPERAND_BYTES * _OPERAND_SHARE * self.hertz)
        flop = 2.0 * np.maximum(rows, _WARP_ROWS) * columns * steps
        return np.hypot(read, flop / (flops * np.where(is_grouped, 1.0, share)))

    def n_beside(self, rows: Any, n_warps: Any) -> Any:
        """Return the warps that share the rows of a product."""
        n_tall = np.where(
            self._is_grouped(rows, n_warps),
            np.maximum(rows // _GROUP_ROWS, 1) * GROUP_WARPS,
            np.maximum(rows // _WARP_ROWS, 1),
        )
        return np.maximum(n_warps / n_tall, 1)

    def _is_grouped(self, rows: Any, n_warps: Any) -> Any:
        return self.has_groups & (rows >= _GROUP_ROWS) & (n_warps >= GROUP_WARPS)


def _warps_below(sizes: tuple[Any, Any, Any], n_warps: Any) -> Any:
    """Return the warps of a column of warps, which Triton divides as the tile is shaped."""
    n_tall, n_wide = sizes[0] / _WARP_ROWS, sizes[1] / _WARP_COLUMNS
    below, beside = np.ones_like(n_tall * n_wide), np.ones_like(n_tall * n_wide)
    for _ in range(_MAX_DOUBLINGS):
        is_below = (n_tall / below >= n_wide / (2 * beside)) & (below < n_tall)
        grows = below * beside < n_warps
        below = np.where(grows & is_below, 2 * below, below)
        beside = np.where(grows & ~is_below, 2 * beside, beside)
    return below


def sum_secs(n_elements: Any, fill_secs: Any) -> Any:
    """Estimate the time of a turn of products without tensor cores.

    Args:
        n_elements: Elements that a thread multiplies.
        fill_secs: Time in which a multiprocessor loads the operands.
    """
    return np.hypot(_SUM_TURN_SECS + _SUM_ELEMENT_SECS * n_elements, fill_secs)


def add_secs(n_parts: Any, n_sums: Any) -> Any:
    """Estimate the time of a second kernel that adds parts of float32 sums."""
    moved = 2 * 4 * n_parts * n_sums / CACHE_BYTES_PER_SEC
    return _ADD_SECS + _ADD_PART_SECS * n_parts + moved


def last_secs(n_parts: Any, n_sums: Any) -> Any:
    """Estimate the time in which last blocks that arrive add parts of float32 sums."""
    moved = 4 * (n_parts - 1) * n_sums / _ARRIVE_BYTES_PER_SEC
    return _ARRIVE_SECS + _ADD_PART_SECS * n_parts + moved


def last_of_tile_secs(n_parts: Any, n_sums: Any, n_rounds: Any) -> Any:
    """Estimate the time in which last blocks add parts of their tiles.

    Unlike others, they wait for no load from memory after they arrive, and keep a part.

    Args:
        n_parts: Parts of the sums.
        n_sums: Sums of the output.
        n_rounds: Rounds in which a block copies its parts to shared memory.
    """
    moved = 4 * (n_parts - 1) * n_sums / _COPIED_BYTES_PER_SEC
    moved *= 1 + _ROUND_SHARE * (n_rounds - 1)
    return _ARRIVE_SECS - MEMORY_LATENCY_SECS + _ADD_PART_SECS * n_parts + moved


# A100, A10, L4, H200, B200 and RTX 5090 stand for their architectures.
_GPUS = {
    80: Gpu(108, 1.41e9, 312e12, 1.6e12, 64, 163 << 10, 64),
    86: Gpu(72, 1.70e9, 125e12, 0.6e12, 32, 99 << 10, 48),
    89: Gpu(58, 2.04e9, 121e12, 0.3e12, 32, 99 << 10, 48),
    90: Gpu(132, 1.83e9, 989e12, 4.8e12, 64, 227 << 10, 64, has_groups=True),
    100: Gpu(148, 1.85e9, 2250e12, 8e12, 64, 227 << 10, 64, has_groups=True),
    120: Gpu(170, 2.41e9, 210e12, 1.8e12, 32, 99 << 10, 48),
}

# GPUs by their architecture and the size of their second-level cache: H100, and RTX 4090, whose
# products of halves are half as fast with sums in float32.
_BY_CACHE = {
    (90, 50 << 20): replace(_GPUS[90], bytes_per_sec=3.35e12),
    (89, 72 << 20): Gpu(128, 2.52e9, 165e12, 1.0e12, 32, 99 << 10, 48),
}


def gpu_of(architecture: int, cache_bytes: int = 0) -> Gpu:
    """Return the GPU of a second-level cache, else one that stands for the architecture.

    Of an architecture that is not known, it is the one of the nearest below.
    """
    if (architecture, cache_bytes) in _BY_CACHE:
        return _BY_CACHE[architecture, cache_bytes]
    known = [number for number in _GPUS if number <= architecture]
    return _GPUS[max(known, default=min(_GPUS))]
