"""Mutated ONNX files through the loader, in a worker process as the service loads them."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.tuner.networks.models import model
from tuner.errors import ModelError, WorkerLost
from tuner.jobs.model_loading import LoadLimits, load_in
from tuner.settings import Settings
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

_N_MUTANTS = 60
_MAX_BYTES = 4 * 2**30
_LIMITS = LoadLimits(secs=120.0, alone=True)


def _cut(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(1, len(content))]


def _flip(rng: random.Random, content: bytes) -> bytes:
    mutant = bytearray(content)
    for _ in range(rng.randrange(1, 8)):
        mutant[rng.randrange(len(mutant))] = rng.randrange(256)
    return bytes(mutant)


def _insert(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.randbytes(rng.randrange(1, 100)) + content[at:]


def _repeat(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + content[at : at + 100] * rng.randrange(2, 20) + content[at:]


_MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (_cut, _flip, _insert, _repeat)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A process with the memory limit of one that loads uploads."""
    folder = tmp_path_factory.mktemp("fuzz")
    settings = Settings(f"sqlite:///{folder}/tuner.db", folder, "tests.engines.toy", 1)
    with fresh_worker(settings, max_bytes=_MAX_BYTES) as pool:
        yield pool


@pytest.fixture(scope="module")
def content() -> bytes:
    """A model with weights, attributes and a reshape, so that a mutation can hit each of them."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.random((4, 3, 3, 3), dtype=np.float32),
        "b": rng.random((4,), dtype=np.float32),
        "m": rng.random((16, 5), dtype=np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["data", "w", "b"], ["c"], pads=[0, 0, 0, 0]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    proto = model(nodes, {"data": (1, 3, 4, 4)}, {"y": (1, 5)}, weights)
    serialized: bytes = proto.SerializeToString()
    return serialized


def test_mutated_models_are_loaded_or_rejected(
    worker: Pool, content: bytes, tmp_path: Path
) -> None:
    """The loader never fails in another way, and the worker loads the intact model afterwards."""
    outcomes: Counter[str] = Counter()
    for number in range(_N_MUTANTS):
        rng = random.Random(number)
        mutate = _MUTATIONS[number % len(_MUTATIONS)]
        outcomes[_outcome(worker, tmp_path, mutate(rng, content))] += 1

    assert outcomes.total() == _N_MUTANTS
    assert set(outcomes) <= {"loaded", "rejected", "lost"}, outcomes
    # Most mutants are damaged, and not all: otherwise nothing beyond the first bytes was parsed.
    assert outcomes["rejected"] >= _N_MUTANTS // 3, outcomes
    assert outcomes["loaded"] >= 1, outcomes
    assert _outcome(worker, tmp_path, content) == "loaded"


def _outcome(worker: Pool, folder: Path, content: bytes) -> str:
    path = folder / "mutant.onnx"
    path.write_bytes(content)
    try:
        load_in(worker, folder / "models", str(path), {}, None, _LIMITS)
    except ModelError as error:
        return "rejected" if str(error) and "\n" not in str(error) else "rejected without a line"
    except WorkerLost:
        return "lost"
    return "loaded"
