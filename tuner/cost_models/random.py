"""The cost model that knows nothing, for baselines and for the first round."""

import hashlib
from collections.abc import Sequence
from typing import Self

import numpy as np

from tuner.cost_models import blobs
from tuner.cost_models.base import Features, Floats, TrainingSet
from tuner.cost_models.features import Stores, stack


def chance_scores(stores: Stores, seed: int) -> Floats:
    """Hash each candidate to a score in (0, 1), shape (n_candidates,)."""
    key = seed.to_bytes(8, "little", signed=True)
    rows, starts, counts = stores
    digests = b"".join(
        hashlib.blake2b(rows[start : start + count].tobytes(), digest_size=8, key=key).digest()
        for start, count in zip(starts, counts, strict=True)
    )
    # 53 bits and a half: a double holds every value, and neither 0 nor 1 occurs.
    return ((np.frombuffer(digests, "<u8") >> 11) + 0.5) / 2**53


class RandomModel:
    """Scores by chance, and learns nothing."""

    kind = "random"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def train(self, samples: TrainingSet) -> None:
        """See `CostModel.train`."""
        stack(samples.features)

    def predict(self, features: Sequence[Features]) -> Floats:
        """See `CostModel.predict`; a pure function of the seed and the candidate."""
        return chance_scores(stack(features), self._seed)

    def save(self) -> bytes:
        """See `CostModel.save`."""
        return blobs.seal(self.kind, self._seed.to_bytes(8, "little", signed=True))

    @classmethod
    def load(cls, blob: bytes) -> Self:
        """See `CostModel.load`."""
        kind, body = blobs.unseal(blob)
        if kind != cls.kind or len(body) != 8:
            raise ValueError(f"want a saved {cls.kind} model, got {kind!r} with {len(body)} bytes")
        return cls(int.from_bytes(body, "little", signed=True))
