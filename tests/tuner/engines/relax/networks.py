"""Loads networks for the engine as the tuner does."""

import atexit
import shutil
from functools import lru_cache
from tempfile import mkdtemp

from tuner.engines.base import ModelFile
from tuner.networks.worker import load_model


@lru_cache(maxsize=32)
def load(reference: str, random_weights: int | None = None) -> ModelFile:
    """Clean a model once a process."""
    folder = mkdtemp(prefix="tuner-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return load_model(reference, {}, random_weights, folder).file
