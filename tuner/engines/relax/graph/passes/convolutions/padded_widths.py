"""Choice of the number of channels to which a convolution or product is padded."""

import math
from collections.abc import Sequence

from tuner.engines.relax.schedules.cpu.primitives.operands import Operand
from tuner.engines.relax.schedules.cpu.primitives.register_tiles import Registers, product_cycles

# Time of the padded product with what the padding adds elsewhere, over the time without padding.
_MAX_SHARE = 0.75
# Cycles of the copy of a vector, and of a further kernel.
_COPY_CYCLES, _CALL_CYCLES = 8, 2000
_ELEMENT_BYTES = 4
# Least step of widths, and the slow-downs of rows that end in a part of a vector, or in single
# numbers.
_MIN_STEP, _UNALIGNED, _ODD = 4, 1.5, 4.0


def choose_width(shape: Sequence[int], n_terms: int, registers: Registers) -> int:
    """Return the channels that a convolution or product with constant weights should compute.

    What reads the result multiplies the padding too, or a copy drops it: both count.

    Args:
        shape: Shape of the result, channels last.
        n_terms: Products that are added to each element of it.
        registers: Vector registers of the target.

    Returns:
        A multiple of a power of two up to a whole vector, or the channels that there are.
    """
    *rows, n_channels = shape
    n_rows = math.prod(rows)
    data = Operand(frozenset(range(len(rows))), 0, n_rows * n_terms * _ELEMENT_BYTES)

    def cycles(width: int) -> float:
        weights = Operand(frozenset({len(rows)}), 0, width * n_terms * _ELEMENT_BYTES)
        n_cycles = n_terms * product_cycles([*rows, width], [data, weights], registers)
        # Vectors cross the lines of rows that begin anywhere, here and in all that reads them.
        if width % registers.lanes:
            n_cycles *= _ODD if width % _MIN_STEP else _UNALIGNED
        return n_cycles

    unpadded = cycles(n_channels)

    def share(width: int) -> float:
        copies = n_rows * math.ceil(n_channels / registers.lanes) * _COPY_CYCLES + _CALL_CYCLES
        waste = width / n_channels - 1
        return (cycles(width) + copies) / unpadded + waste

    steps = [step for step in (_MIN_STEP, 8, 16) if step <= registers.lanes]
    widths = {math.ceil(n_channels / step) * step for step in steps} - {n_channels}
    best = min(widths, key=share, default=n_channels)
    return best if best == n_channels or share(best) <= _MAX_SHARE else n_channels
