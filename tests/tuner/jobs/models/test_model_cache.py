"""The cache of loaded models loads a model again only if something about it changed."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.networks.models import model, relu_model
from tuner.build_cache.cache import Cache
from tuner.errors import WorkError
from tuner.jobs.models import model_cache
from tuner.jobs.models.model_cache import load
from tuner.jobs.models.model_loading import ModelQuery, check_file
from tuner.networks.base import LoadedModel
from tuner.settings import read_settings
from tuner.workers.confinement.sandbox_paths import Access
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool


class Loads:
    """Loader of models in one worker that counts the calls to it."""

    def __init__(self, folder: Path, worker: Pool) -> None:
        self.cache = Cache(folder / "cache")
        self.folder = folder / "models"
        self.n_calls = 0
        self.before: Callable[[], object] | None = None
        self._worker = worker
        self.exchange = worker.exchange

    def call(self, *args: object, **options: object) -> object:
        """Count a call and pass it to the worker."""
        self.n_calls += 1
        if self.before is not None:
            self.before()
        return self._worker.call(*args, **options)  # type: ignore[arg-type]

    def __call__(self, path: Path | str, **inputs: tuple[int, ...]) -> LoadedModel:
        """Load a model with shapes for its inputs."""
        query = ModelQuery(str(path), inputs, None)
        return load(self.cache, self, self.folder, query)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A worker process that loads models."""
    settings = read_settings({"data_dir": tmp_path_factory.mktemp("worker")}, {})
    access = Access(writes=(tmp_path_factory.getbasetemp(),))
    with fresh_worker(settings, access=access) as pool:
        yield pool


@pytest.fixture
def loads(tmp_path: Path, worker: Pool) -> Loads:
    """A loader with an empty cache."""
    return Loads(tmp_path, worker)


def test_a_model_is_loaded_once(loads: Loads, tmp_path: Path) -> None:
    """The cached model equals the loaded one, in the order of its inputs too."""
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("Add", ["z", "a"], ["y"])]
    onnx.save(model(nodes, {"z": ("n", 4), "a": (1, 4)}, {"y": ("n", 4)}), path)

    first, again = loads(path, z=(2, 4)), loads(path, z=(2, 4))

    assert first == again
    assert list(again.file.inputs) == ["z", "a"]
    assert loads.n_calls == 1


def test_another_shape_or_content_is_another_model(loads: Loads, tmp_path: Path) -> None:
    """Shapes and content are part of the cache key."""
    path = tmp_path / "m.onnx"
    onnx.save(relu_model("n", 4), path)
    one, two = loads(path, data=(1, 4)), loads(path, data=(2, 4))
    onnx.save(relu_model("n", 5), path)
    three = loads(path, data=(1, 5))

    assert len({one.sha256, two.sha256, three.sha256}) == loads.n_calls == 3


def test_a_model_without_its_cleaned_file_is_loaded_again(loads: Loads, tmp_path: Path) -> None:
    """The cache entry alone is useless."""
    path = tmp_path / "m.onnx"
    onnx.save(relu_model(1, 4), path)
    kept = Path(loads(path).file.path)
    kept.unlink()

    loads(path)

    assert kept.is_file()
    assert loads.n_calls == 2


def test_an_altered_cleaned_file_is_refused_and_written_again(loads: Loads, tmp_path: Path) -> None:
    """The altered file has the same size, so that only its hash differs."""
    path = tmp_path / "m.onnx"
    onnx.save(relu_model(1, 4), path)
    loaded = loads(path)
    kept = Path(loaded.file.path)
    content = kept.read_bytes()
    kept.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    with pytest.raises(WorkError, match="damaged and is removed; try again"):
        check_file(loads(path))

    check_file(loads(path))
    assert kept.read_bytes() == content


@pytest.mark.parametrize("left", [b"", b"of another time"])
def test_a_file_torn_by_a_loss_of_power_is_written_again(
    loads: Loads, tmp_path: Path, left: bytes
) -> None:
    """The content of a file is checked although its name is its hash."""
    path = tmp_path / "m.onnx"
    onnx.save(relu_model(1, 4), path)
    kept = Path(loads(path).file.path)
    content = kept.read_bytes()
    kept.write_bytes(left)

    check_file(loads(path))

    assert kept.read_bytes() == content
    assert list(kept.parent.iterdir()) == [kept]


def test_a_model_that_changes_while_it_is_loaded_is_not_cached(
    loads: Loads, tmp_path: Path
) -> None:
    """The loaded model may have either content."""
    path, other = tmp_path / "m.onnx", tmp_path / "other.onnx"
    onnx.save(relu_model(1, 4), path)
    onnx.save(relu_model(1, 5), other)
    first = path.read_bytes()
    loads.before = lambda: path.write_bytes(other.read_bytes())
    swapped = loads(path)
    path.write_bytes(first)
    loads.before = None

    assert loads(path).sha256 != swapped.sha256
    assert loads.n_calls == 2


def test_the_key_of_external_files_is_detected_at_any_offset(tmp_path: Path) -> None:
    """A file is read in chunks, and the key may begin in one and end in the next."""
    path = tmp_path / "m.onnx"
    for start in ((1 << 20) - 8, (1 << 20) - 4, 1 << 20):
        path.write_bytes(b"x" * start + b"location" + b"x")
        assert model_cache.content_of(path) is None
    path.write_bytes(b"x" * (2 << 20))
    assert model_cache.content_of(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_weights_in_another_file_are_read_every_time(loads: Loads, tmp_path: Path) -> None:
    """The model's own file does not tell when they change."""
    path = tmp_path / "m.onnx"
    digests = set()
    for value in (1.0, 2.0):
        weights = {"w": np.full((32, 32), value, np.float32)}
        nodes = [helper.make_node("MatMul", ["data", "w"], ["y"])]
        made = model(nodes, {"data": (1, 32)}, {"y": (1, 32)}, weights)
        external = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
        (tmp_path / "w.bin").unlink(missing_ok=True)
        onnx.save(made, path, **external)
        digests.add(loads(path).sha256)

    assert len(digests) == loads.n_calls == 2


def test_zoo_model_is_known_by_its_query(loads: Loads) -> None:
    """It has no file."""
    assert loads("zoo:mlp") == loads("zoo:mlp") != loads("zoo:mlp?batch=2")
    assert loads.n_calls == 2
