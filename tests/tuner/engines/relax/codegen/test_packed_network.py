"""Weights of networks in packs."""

import numpy as np
import tvm

from tuner.engines.packed import PackedBlock
from tuner.engines.relax.codegen.packed_network import _weight


def test_infinite_weights_are_left_out_of_the_distribution() -> None:
    """Masks have them, and their mean would make every output NaN."""
    mask = np.triu(np.full((64, 64), -np.inf, "float32"), 1)
    n_bytes = mask.nbytes

    blocks = [_weight(tvm.runtime.tensor(each)) for each in (mask + 2, np.full_like(mask, np.inf))]

    assert blocks == [PackedBlock(n_bytes, "float32", None, 2.0, 0.0), PackedBlock(n_bytes)]
