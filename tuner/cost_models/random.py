"""The random cost model, for baselines and for the first round."""

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
    # 53 bits plus 0.5: every value is exact in a double, and neither 0 nor 1 occurs.
    return ((np.frombuffer(digests, "<u8") >> 11) + 0.5) / 2**53


class RandomModel:
    """A model with random scores that ignores its training set."""

    kind = "random"
    is_random = True

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def train(self, samples: TrainingSet) -> None:
        """Check the shapes of the samples."""
        stack(samples.features)

    def predict(self, features: Sequence[Features]) -> Floats:
        """Return scores that depend on the seed and the candidate only."""
        return chance_scores(stack(features), self._seed)

    def save(self) -> bytes:
        """Return a blob with the seed."""
        return blobs.seal(self.kind, self._seed.to_bytes(8, "little", signed=True))

    @classmethod
    def load(cls, blob: bytes) -> Self:
        """Restore a model from its blob."""
        kind, body = blobs.unseal(blob)
        if kind != cls.kind or len(body) != 8:
            raise ValueError(
                f"expected a saved {cls.kind} model, got {kind!r} with {len(body)} bytes"
            )
        return cls(int.from_bytes(body, "little", signed=True))
