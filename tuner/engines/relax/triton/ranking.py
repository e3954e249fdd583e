"""Order of the configurations of a contraction by an estimate of their time."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from tuner.engines.relax.triton import gpus
from tuner.engines.relax.triton.expressions.kernel_blocks import buffers_of, children, key
from tuner.engines.relax.triton.templates.configurations import Configuration
from tuner.engines.relax.triton.templates.contractions import Contraction, extent_of

# Constants of times, see gpus. What follows the products, for each sum of a thread: a function such
# as erf, and the rest for each four warps of a multiprocessor. A loop of more than one turn, and
# norms in a second kernel.
_FUNCTION_SECS, _STORE_SECS = 23.5e-9, 4.5e-9
_LOOP_SECS, _NORM_SECS = 0.24e-6, 0.4e-6
# Bytes that a thread loads at once, and the fewest that are loaded asynchronously.
_LOAD_BYTES, _MIN_ASYNC_BYTES = 16, 4
# Sums that a thread keeps in registers. Those of float32 leave room for the parts of its operands,
# which sm_90 reads from shared memory in part.
_MAX_SUMS, _MIN_SUMS = 128, 4
# Turns of which more ahead gain nothing, and the most sums of a tile of two warps.
_MAX_STAGES, _MAX_FEW_SUMS = 6, 1024
# Bytes of the steps of a turn (with half of them, nothing came within 14 % of the best), and the
# fewest steps of a product on tensor cores.
_MIN_STEP_BYTES, _MIN_STEPS = 64, 16
# Rows and columns of the smallest tile.
_MIN_TILE = 16
# Elements of whole rows that a thread keeps.
_MAX_KEPT = 64
# Shared memory that parts of the sums may take where the operands took less.
_MIN_ROOM_BYTES = 16 << 10
# Blocks of a multiprocessor that share sums, at most.
_MAX_SHARING = 8


def ranked(
    contraction: Contraction, architecture: int, cache_bytes: int = 0
) -> list[Configuration]:
    """Return the configurations of a contraction, the fastest by estimate first."""
    gpu = gpus.gpu_of(architecture, cache_bytes)
    decisions = _fitting(contraction, gpu)
    order = np.argsort(estimate_secs(contraction, decisions, gpu), kind="stable")
    return [Configuration(*each) for each in decisions[order].tolist()]


def pays(contraction: Contraction, architecture: int) -> bool:
    """Return whether two products in one kernel are estimated to be no slower than two kernels."""
    if contraction.beside is None:
        return True
    gpu = gpus.gpu_of(architecture)
    apart = (replace(contraction, beside=None), contraction.beside)
    together, *each = (
        estimate_secs(one, _fitting(one, gpu), gpu).min(initial=np.inf)
        for one in (contraction, *apart)
    )
    return bool(together <= sum(each))


def estimate_secs(contraction: Contraction, decisions: np.ndarray, gpu: gpus.Gpu) -> np.ndarray:
    """Estimate the times of configurations, in seconds; see :class:`Template`."""
    rows, columns, steps, stages, warps, splits, is_one = decisions.T.astype(float)
    n_bytes, threads = gpus.BYTES[contraction.dtype], gpus.WARP * warps
    is_sum = rows == 1
    n_products = len(contraction.products)
    kept = np.where(is_sum, 2 * steps, rows) * columns / threads * n_products
    n_resident = gpu.n_resident(_shared_bytes(contraction, decisions), kept, warps)
    tiles = np.ceil(contraction.n_rows / rows) * np.ceil(contraction.n_columns / columns)
    operands = rows * ~is_sum * steps * n_bytes, columns * steps * n_bytes
    product = gpu.product_secs(contraction.dtype, (rows, columns, steps), warps)
    sums = rows * columns / threads
    start = gpus.WARPS_SECS * warps / gpus.GROUP_WARPS
    loaded, secs = np.zeros(len(decisions)), np.zeros(len(decisions))
    for each, _ in contraction.products:
        loaded += each.n_steps / steps * sum(operands) * tiles * contraction.n_batches
    for n_waves, n_beside in gpu.waves(tiles * splits * contraction.n_batches, n_resident):
        for each, _ in contraction.products:
            n_turns, *load_bytes = _turns(each, steps)
            n_turns = np.ceil(n_turns / splits)
            # Loads of a few bytes take as long as those of many, and none is asynchronous.
            slowed = (size / n for size, n in zip(operands, load_bytes, strict=True))
            fill = gpu.fill_secs(_LOAD_BYTES * sum(slowed))
            is_slow = load_bytes[0] < _MIN_ASYNC_BYTES
            ahead = np.where(is_slow, 1, np.clip(stages, 2, _MAX_STAGES) - 1)
            ahead = np.minimum(ahead, n_turns)
            beside = n_beside * product, n_beside * fill
            turn = np.sqrt((gpus.LATENCY_SECS / ahead) ** 2 + beside[0] ** 2 + beside[1] ** 2)
            multiplied = _LOOP_SECS * (n_turns > 1) + ahead * fill + n_turns * turn
            filled = gpu.fill_secs(n_beside * operands[1])
            summed = n_turns * gpus.sum_secs(steps * columns / threads, filled)
            secs += n_waves * np.where(is_sum, summed, multiplied)
        # A second kernel calls the functions, one of whose threads has few sums.
        n_functions = contraction.n_functions * ((splits == 1) | (is_one > 0))
        stored = _FUNCTION_SECS * n_functions * sums
        stored += _STORE_SECS * sums * warps / gpus.GROUP_WARPS * n_beside
        secs += n_waves * (start * n_beside + np.where(is_sum, 0.0, stored))
    secs = np.hypot(secs, gpu.fill_secs(loaded / gpu.n_multiprocessors))
    weights = sum(_weight_bytes(each) for each, _ in contraction.products)
    read = gpus.MEMORY_LATENCY_SECS + weights / (gpu.bytes_per_sec * gpus.MEMORY_SHARE)
    secs = gpus.LAUNCH_SECS + np.hypot(secs, read)
    n_sums = contraction.n_batches * contraction.n_rows * contraction.n_columns
    is_added = (splits > 1) | contraction.has_norm
    second = gpus.add_secs(splits, n_sums)
    if contraction.has_norm:
        # The last block of some rows loads them whole.
        last = gpus.last_secs(splits, n_sums)
        last = last + gpu.fill_secs(4 * splits * rows * contraction.n_columns)
        second = second + _NORM_SECS
    else:
        n_copied = np.maximum(copied_parts(contraction, decisions), 1)
        last = gpus.last_of_tile_secs(splits, n_sums, np.ceil(splits / n_copied))
    added = np.where(is_one > 0, last, second)
    estimates: np.ndarray = np.where(is_added, secs + added, secs)
    return estimates


def _weight_bytes(contraction: Contraction) -> float:
    """Return the bytes of the second operand in memory, which quantised weights have few of."""
    packed = [
        math.prod(map(int, buffer.shape))
        for buffer in buffers_of(contraction.operands[1])
        if str(buffer.dtype) == "uint8"
    ]
    n_elements = contraction.n_batches * contraction.n_steps * contraction.n_columns
    return float(max(packed, default=gpus.BYTES[contraction.dtype] * n_elements))


def _turns(
    contraction: Contraction, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the turns of the loop, and the bytes of a thread's loads of each operand at most."""
    extents = [axis.extent for axis in contraction.steps]
    inner = max(extents)
    is_whole = (inner % steps == 0) | (len(extents) == 1)
    # Steps that follow each other in memory.
    run = extents[-1] if extents[-1] == inner else 1
    flat = extent_of(contraction.steps[1:]) if len(extents) > 1 else inner
    n_bytes = gpus.BYTES[contraction.dtype]
    columns = np.gcd(np.where(is_whole & (len(extents) > 1), run, flat) * n_bytes, _LOAD_BYTES)
    # Where a turn goes through several taps, each element has an edge of the image of its own.
    is_apart = ~is_whole & _is_padded(contraction, contraction.operands[0])
    return np.ceil(contraction.n_steps / steps), np.where(is_apart, n_bytes, columns), columns


def _is_padded(contraction: Contraction, expr: Any) -> bool:
    """Return whether an operand has a condition, as that of padding."""
    if str(getattr(getattr(expr, "op", None), "name", "")).endswith("if_then_else"):
        return True
    block = contraction.blocks.blocks.get(key(expr.source)) if hasattr(expr, "source") else None
    inner = children(expr) if block is None or block.reduced else [block.value]
    return any(_is_padded(contraction, each) for each in inner)


def _shared_bytes(contraction: Contraction, decisions: np.ndarray) -> np.ndarray:
    rows, columns, steps, stages, *_ = decisions.T
    n_turns, *_ = _turns(contraction, steps)
    operands = (rows + columns) * steps * gpus.BYTES[contraction.dtype]
    staged: np.ndarray = np.minimum(stages, n_turns) * operands * (rows > 1)
    return staged


def copied_parts(contraction: Contraction, decisions: np.ndarray) -> np.ndarray:
    """Return how many parts of a tile fit at once where its operands were in shared memory.

    Args:
        decisions: Numbers of configurations, shape (n, 7).

    Returns:
        Shape (n,).
    """
    rows, columns, *_, splits, _ = decisions.T
    room = np.maximum(_shared_bytes(contraction, decisions), _MIN_ROOM_BYTES)
    copied: np.ndarray = np.minimum(room // (4 * rows * columns), splits)
    return copied


def _fitting(contraction: Contraction, gpu: gpus.Gpu) -> np.ndarray:
    """Return the configurations that a GPU can run, shape (n, 7)."""
    n_rows, n_columns, is_sum = contraction.n_rows, contraction.n_columns, contraction.n_rows == 1
    smallest = _MIN_STEP_BYTES // gpus.BYTES[contraction.dtype]
    if contraction.n_steps <= smallest // 2:
        smallest = max(smallest // 2, _MIN_STEPS)
    most = _MAX_SUMS // len(contraction.products)
    if contraction.dtype == "float32":
        most //= 2 if gpu.has_groups else 4
    # The three parts of a product of float32 are split in registers.
    largest = 32 if contraction.dtype == "float32" and not is_sum else 128
    choices = (
        [1] if is_sum else _sizes(_MIN_TILE, 128, n_rows),
        _sizes(_MIN_TILE, 256, n_columns),
        _sizes(smallest, largest, contraction.n_steps),
        # Without tensor cores, Triton loads nothing ahead.
        (1,) if is_sum else (2, 3, 4, 5, 6, 8),
        (4, 8) if is_sum else (4, 8, 2),
        # Parts of windows are of whole turns, which odd numbers of taps do not halve.
        (1, 2, 4, 8, 16) if len(contraction.steps) == 1 else (1, 2, 3, 4, 8, 16),
        (0, 1),
    )
    decisions = np.array(list(itertools.product(*choices)))
    rows, columns, steps, stages, warps, splits, is_one = decisions.T
    n_turns, *_ = _turns(contraction, steps)
    n_sums = np.where(rows == 1, 2 * steps, rows) * columns / (gpus.WARP * warps)
    n_blocks = np.ceil(n_rows / rows) * np.ceil(n_columns / columns) * contraction.n_batches
    # Products of fewer rows and columns have no other tile.
    is_smallest = (max(n_rows, n_columns) <= _MIN_TILE) & (warps <= gpus.GROUP_WARPS)
    is_parted = n_blocks * splits <= _MAX_SHARING * gpu.n_multiprocessors
    fits = (
        ((n_sums >= _MIN_SUMS * np.maximum(gpus.GROUP_WARPS / warps, 1)) | is_smallest)
        & (n_sums <= most)
        & ((warps >= gpus.GROUP_WARPS) | (rows * columns <= _MAX_FEW_SUMS))
        & ((splits == 1) | ((n_turns >= 2 * splits) & is_parted))
        & (stages <= np.maximum(np.ceil(n_turns / splits) + 1, 2))
        & (_shared_bytes(contraction, decisions) <= gpu.shared_bytes)
    )
    if contraction.has_norm:
        n_kept = rows * (1 << (n_columns - 1).bit_length()) / (gpus.WARP * warps)
        fits &= (is_one == 0) | (n_kept <= _MAX_KEPT)
    else:
        fits &= (is_one == 0) | (splits > 1)
    fits &= (splits == 1) | (contraction.beside is None)
    if len(contraction.steps) > 1:
        fits &= (n_turns % splits == 0) | (splits == 1)
    fitting: np.ndarray = decisions[fits]
    return fitting


def _sizes(smallest: int, largest: int, extent: int) -> list[int]:
    """Return the powers of two of a range that are at most the next one above an extent."""
    above = max(smallest, 1 << math.ceil(math.log2(max(extent, 1))))
    exponents = range(int(math.log2(smallest)), int(math.log2(largest)) + 1)
    return [1 << exponent for exponent in exponents if 1 << exponent <= above]
