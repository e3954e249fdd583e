"""Order of the configurations of a contraction by an estimate of their time."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.engines.relax.triton.configurations import Configuration
from tuner.engines.relax.triton.contractions import Contraction

#: Bytes of an element of an operand.
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1}
# Launch of a kernel in a graph, and filling the stages of a block, seconds.
_LAUNCH_SECS, FILL_SECS = 2e-6, 8e-7
# Time from the request of operands to their arrival, and that of the barriers of a turn.
_LATENCY_SECS, _TURN_SECS = 6e-7, 6e-8
# Share of the shorter ones of loads and products that the longest does not hide.
_NOT_HIDDEN = 0.1
# Sums that a thread keeps in registers. Those of float32 leave room for the parts of its operands,
# which sm_90 reads from shared memory in part.
_MAX_SUMS, _MIN_SUMS = 128, 4
# Rows from which tensor cores of sm_90 are fed from shared memory, and the speed below.
_WGMMA_ROWS, _WITHOUT_WGMMA = 64, 0.6
# Share of the peak that loops of products reach.
_EFFICIENCY = 0.7
# Loads whose addresses need divisions, in the time of others.
_SCATTERED = 2.0
_MAX_WARPS_OF_MULTIPROCESSOR, _MAX_BLOCKS_OF_MULTIPROCESSOR = 48, 8


@dataclass(frozen=True)
class Gpu:
    """Numbers of a GPU, of data sheets.

    Attributes:
        n_multiprocessors: Multiprocessors.
        flops: Products and sums of float16 on tensor cores, per second.
        l2_bytes_per_sec: Bandwidth of the second-level cache.
        bytes_per_sec: Bandwidth of the memory.
        shared_bytes: Shared memory of a block.
    """

    n_multiprocessors: int
    flops: float
    l2_bytes_per_sec: float
    bytes_per_sec: float
    shared_bytes: int


# A100, A10, L4, H100 and B200 stand for their architectures.
_GPUS = {
    80: Gpu(108, 312e12, 4e12, 1.5e12, 163 << 10),
    86: Gpu(72, 125e12, 2e12, 0.6e12, 99 << 10),
    89: Gpu(58, 121e12, 2e12, 0.3e12, 99 << 10),
    90: Gpu(132, 990e12, 5.5e12, 3.3e12, 227 << 10),
    100: Gpu(148, 2250e12, 8e12, 8e12, 227 << 10),
}


def gpu_of(architecture: int) -> Gpu:
    """Return the GPU that stands for an architecture, or for the nearest one below."""
    known = [number for number in _GPUS if number <= architecture]
    return _GPUS[max(known, default=min(_GPUS))]


def ranked(contraction: Contraction, architecture: int) -> list[Configuration]:
    """Return the configurations of a contraction, the fastest by estimate first."""
    gpu = gpu_of(architecture)
    timed = [
        (estimate_secs(contraction, each, architecture), number, each)
        for number, each in enumerate(_fitting(contraction, gpu, architecture))
    ]
    return [each for _, _, each in sorted(timed, key=lambda item: item[:2])]


def estimate_secs(contraction: Contraction, by: Configuration, architecture: int) -> float:
    """Estimate the time of a contraction inside of a graph, in seconds."""
    gpu, n_bytes = gpu_of(architecture), BYTES[contraction.dtype]
    n_turns, is_scattered = _turns(contraction, by)
    n_tiles = -(-contraction.n_rows // by.rows) * -(-contraction.n_columns // by.columns)
    n_blocks = n_tiles * contraction.n_batches * by.n_splits
    shared = max(_shared_bytes(contraction, by), 1)
    n_resident = max(
        min(
            gpu.shared_bytes // shared,
            _MAX_WARPS_OF_MULTIPROCESSOR // by.n_warps,
            _MAX_BLOCKS_OF_MULTIPROCESSOR,
            -(-n_blocks // gpu.n_multiprocessors),
        ),
        1,
    )
    # Times of all blocks of a multiprocessor.
    loaded: float = n_resident * (by.rows + by.columns) * by.steps * n_bytes
    flop = 2.0 * n_resident * max(by.rows, 16) * by.columns * by.steps
    if by.rows < _WGMMA_ROWS and architecture == 90:
        flop /= _WITHOUT_WGMMA
    loaded *= _SCATTERED if is_scattered else 1.0
    secs = turn_secs(gpu, contraction.dtype, loaded, flop, by.n_stages)
    n_waves = -(-n_blocks // (gpu.n_multiprocessors * n_resident))
    sums_bytes = 4 * contraction.n_batches * contraction.n_rows * contraction.n_columns
    total = _LAUNCH_SECS + n_waves * (FILL_SECS + -(-n_turns // by.n_splits) * secs)
    moved = n_bytes * contraction.n_batches * contraction.n_steps
    moved *= contraction.n_rows + contraction.n_columns
    total = max(total, _LAUNCH_SECS + moved / gpu.bytes_per_sec)
    if by.n_splits > 1:
        total += _LAUNCH_SECS + 2 * by.n_splits * sums_bytes / gpu.l2_bytes_per_sec
    return total


def turn_secs(gpu: Gpu, dtype: str, n_bytes: float, flop: float, n_stages: int) -> float:
    """Estimate the time of one turn of a loop of products.

    Args:
        gpu: GPU.
        dtype: Type of the operands.
        n_bytes: Bytes that all blocks of a multiprocessor load.
        flop: Operations of all blocks of a multiprocessor.
        n_stages: Turns whose operands are loaded ahead, and the present one.
    """
    flops = gpu.flops / gpu.n_multiprocessors * _EFFICIENCY * 2 / BYTES[dtype]
    flop_secs = flop * (3.0 if dtype == "float32" else 1.0) / flops
    load_secs = n_bytes * gpu.n_multiprocessors / gpu.l2_bytes_per_sec
    longest = max(_LATENCY_SECS / max(n_stages - 1, 1), load_secs, flop_secs)
    return longest + _TURN_SECS + _NOT_HIDDEN * (load_secs + flop_secs)


def _turns(contraction: Contraction, by: Configuration) -> tuple[int, bool]:
    """Return the turns of the loop, and whether the addresses of a turn are scattered."""
    inner = max(axis.extent for axis in contraction.steps)
    if len(contraction.steps) == 1:
        return -(-inner // by.steps), False
    if inner % by.steps == 0:
        return contraction.n_steps // by.steps, False
    return -(-contraction.n_steps // by.steps), True


def _shared_bytes(contraction: Contraction, by: Configuration) -> int:
    if by.rows == 1:
        return 0
    stages = min(by.n_stages, _turns(contraction, by)[0])
    return stages * (by.rows + by.columns) * by.steps * BYTES[contraction.dtype]


def _fitting(contraction: Contraction, gpu: Gpu, architecture: int) -> Iterator[Configuration]:
    """Yield the configurations that a GPU can run."""
    smallest = 32 if contraction.dtype == "int8" else 16
    sums = _MAX_SUMS
    if contraction.dtype == "float32":
        sums //= 2 if architecture == 90 else 4
    rows = [1] if contraction.n_rows == 1 else _sizes(16, 128, contraction.n_rows)
    columns = _sizes(16, 256, contraction.n_columns)
    # The three parts of a product of float32 are split in registers.
    largest = 32 if contraction.dtype == "float32" and contraction.n_rows > 1 else 128
    steps = _sizes(smallest, largest, contraction.n_steps)
    # Without tensor cores, Triton loads nothing ahead.
    stages = (1,) if contraction.n_rows == 1 else (2, 3, 4, 5)
    for sizes in itertools.product(rows, columns, steps, stages, (4, 8)):
        for n_splits in (1, 2, 4, 8, 16):
            by = Configuration(*sizes, n_splits)
            n_turns, _ = _turns(contraction, by)
            n_sums = by.columns * (2 * by.steps if by.rows == 1 else by.rows) / (32 * by.n_warps)
            is_divided = n_turns >= 2 * n_splits or n_splits == 1
            is_even = len(contraction.steps) == 1 or n_turns % n_splits == 0
            is_staged = by.n_stages <= max(n_turns, 2)
            fits = _shared_bytes(contraction, by) <= gpu.shared_bytes
            if _MIN_SUMS <= n_sums <= sums and is_divided and is_even and is_staged and fits:
                yield by


def _sizes(smallest: int, largest: int, extent: int) -> list[int]:
    """Return the powers of two of a range that are at most the next one above an extent."""
    above = max(smallest, 1 << math.ceil(math.log2(max(extent, 1))))
    exponents = range(int(math.log2(smallest)), int(math.log2(largest)) + 1)
    return [1 << exponent for exponent in exponents if 1 << exponent <= above]
