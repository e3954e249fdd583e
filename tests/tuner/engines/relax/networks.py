"""Loads networks for the engine as the tuner does."""

from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

from tuner.engines.base import ModelFile
from tuner.networks.worker import load_model


@lru_cache(maxsize=32)
def load(reference: str, random_weights: int | None = None) -> ModelFile:
    """Clean a model once a process."""
    folder = Path(mkdtemp(prefix="tuner-test-"))
    return load_model(reference, {}, random_weights, str(folder)).file
