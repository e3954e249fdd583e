"""Models before cleaning: their identity, and the files that peers run."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.networks import models
from tests.tuner.networks.models import LIGHT
from tuner.errors import ModelError
from tuner.library.manifest import Source
from tuner.networks.load import load_network
from tuner.networks.originals import content_hash, source_of, write_original

_IMAGE = {"data_0": ((1, 3, 224, 224), "float32")}


def save(path: Path, weight: float, *, external: bool) -> Path:
    """Write a model with a dynamic batch, whose one weight may lie in another file."""
    array = np.full((400, 4), weight, np.float32)
    model = models.model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": ("batch", 400)},
        {"y": ("batch", 4)},
        {"w": array},
    )
    (path.parent / "weights.bin").unlink(missing_ok=True)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin")
    return path


def test_zoo_network_is_its_name() -> None:
    """A generated model has no file."""
    assert source_of("zoo:mlp", 3) == Source("zoo:mlp", "", 3)


@pytest.mark.parametrize("external", [False, True])
def test_hash_covers_the_weights(tmp_path: Path, external: bool) -> None:
    """A change of a weight changes the hash, wherever the weight lies; a copy does not."""
    first = source_of(str(save(tmp_path / "model.onnx", 1.0, external=external)), None)
    again = content_hash(save(tmp_path / "copy.onnx", 1.0, external=external))
    second = content_hash(save(tmp_path / "model.onnx", 2.0, external=external))

    assert first.name == "model.onnx"
    assert first.sha256 == again != second


def test_missing_external_file_is_an_error(tmp_path: Path) -> None:
    """The message names the model."""
    path = save(tmp_path / "model.onnx", 1.0, external=True)
    (tmp_path / "weights.bin").unlink()

    with pytest.raises(ModelError, match=r"model\.onnx"):
        content_hash(path)


def test_users_file_is_not_copied(tmp_path: Path) -> None:
    """The peer runs the very file, and learns the sizes of its dynamic dimensions."""
    path = save(tmp_path / "model.onnx", 1.0, external=True)

    original = write_original(str(path), {"x": ((3, 400), "float32")}, None, str(tmp_path / "none"))

    assert (original.path, original.format) == (str(path), "onnx")
    assert original.description == "model.onnx"
    assert original.symbols == {"batch": 3}


def test_peers_give_a_repeated_output_once(tmp_path: Path) -> None:
    """As a library does, whose outputs have names."""
    path = save(tmp_path / "model.onnx", 1.0, external=False)
    repeated = onnx.load(path)
    repeated.graph.output.append(repeated.graph.output[0])
    onnx.save(repeated, path)

    original = write_original(str(path), {"x": ((3, 400), "float32")}, None, str(tmp_path))

    assert [info.name for info in onnx.load(original.path).graph.output] == ["y"]
    assert original.description == "model.onnx, not cleaned"


def test_random_weights_are_written_without_cleaning(tmp_path: Path) -> None:
    """Operators are those of the file, and the description names the seed."""
    path = LIGHT / "light_squeezenet.onnx"

    original = write_original(str(path), _IMAGE, 7, str(tmp_path))

    kinds = {node.op_type for node in onnx.load(original.path).graph.node}
    assert "Dropout" in kinds
    assert "seed 7" in original.description
    assert "not cleaned" in original.description


def test_zoo_network_is_written_as_generated(tmp_path: Path) -> None:
    """Another file than the cleaned one."""
    original = write_original("zoo:mlp", {"data": ((1, 1, 28, 28), "float32")}, None, str(tmp_path))

    assert Path(original.path).parent == tmp_path
    assert original.description == "zoo:mlp, as generated"


def test_external_data_is_named_once(tmp_path: Path) -> None:
    """The name that is checked is the one that is read; a device would be read for ever."""
    path = save(tmp_path / "model.onnx", 1.0, external=True)
    model = onnx.load(path, load_external_data=False)
    (tensor,) = (each for each in model.graph.initializer if each.external_data)
    named = tensor.external_data[0]
    assert named.key == "location"
    tensor.external_data.insert(0, onnx.StringStringEntryProto(key="location", value="/dev/zero"))
    onnx.save(model, path)

    with pytest.raises(ModelError, match="more than once"):
        load_network(str(path))
    with pytest.raises(ModelError, match="'/dev/zero', which is not a file"):
        content_hash(path)
