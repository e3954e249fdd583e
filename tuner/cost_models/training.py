"""Worker function that trains a cost model on stored records."""

from collections.abc import Sequence

import numpy as np

from tuner.cost_models import features, registry
from tuner.cost_models.base import TrainingSet


def train(kind: str, seed: int, rows: Sequence[tuple[int, bytes, float | None]]) -> bytes:
    """Train a new model and return its blob.

    Args:
        kind: A name in ``registry.KINDS``.
        rows: Task id, packed features and latency in seconds of each trial; None if it failed.

    Raises:
        ValueError: If the kind is unknown or a blob is damaged.
    """
    model = registry.create(kind, seed)
    model.train(
        TrainingSet(
            features=[features.unpack(packed) for _, packed, _ in rows],
            latencies=np.array([np.inf if secs is None else secs for _, _, secs in rows]),
            tasks=np.array([task for task, _, _ in rows], dtype=np.int64),
        )
    )
    return model.save()
