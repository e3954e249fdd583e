"""A good reference loads; a bad one is explained in one line."""

import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks.models import LIGHT, model, relu_model
from tuner.errors import ModelError
from tuner.networks.load import load_network
from tuner.networks.onnx import onnx_file
from tuner.networks.onnx.cleaning import clean
from tuner.networks.onnx.foreign import refusal as refuse_operators


def save(proto: onnx.ModelProto, path: Path) -> str:
    """Write a model, and return its path as a user would pass it."""
    path.write_bytes(proto.SerializeToString())
    return str(path)


def refuse(reference: str, message: str, **inputs: tuple[int, ...]) -> None:
    """Check that loading fails with one line that matches."""
    with pytest.raises(ModelError, match=message) as caught:
        load_network(reference, inputs)
    assert "\n" not in str(caught.value)


def test_a_fixed_model_loads(tmp_path: Path) -> None:
    """Name, inputs and outputs come from the file."""
    network = load_network(save(relu_model(1, 3), tmp_path / "small.onnx"))

    assert (network.name, network.format) == ("small", "onnx")
    assert network.inputs["data"].shape == network.outputs["y"].shape == (1, 3)
    assert network.inputs["data"].dtype == "float32"


def test_a_dynamic_model_takes_the_requested_shape(tmp_path: Path) -> None:
    """The outputs follow the inputs, regardless of their declared shapes."""
    proto = model([helper.make_node("Relu", ["data"], ["y"])], {"data": ("n", 3)}, {"y": (1, 3)})
    path = save(proto, tmp_path / "m.onnx")

    network = load_network(path, {"data": (4, 3)})

    assert network.outputs["y"].shape == (4, 3)
    assert "fixed data to 4x3" in network.notes
    assert network.sha256 != load_network(path, {"data": (5, 3)}).sha256


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.onnx", b"", r"is empty: export or download"),
        ("text.onnx", b"hello, I am a text file\n" * 9, r"is a text file, not a model"),
        ("lfs.onnx", b"version https://git-lfs.github.com/spec/v1\n", r"run git lfs pull"),
        ("noise.onnx", bytes(range(256)) * 9, r"is not an ONNX model, or is cut off after 2304"),
        ("page.onnx", b"<!DOCTYPE html><html>", r"is a web page, not the model"),
        ("packed.onnx", b"\x1f\x8b\x08" + bytes(99), r"is compressed by gzip: unpack it"),
        ("packed.onnx.gz", b"\x1f\x8b\x08" + bytes(99), r"is compressed by gzip: unpack it"),
        ("marked.onnx", b"\xef\xbb\xbf" + bytes(99), r"begins with a byte order mark"),
        ("m.ort", b"\x08\0\0\0ORTM" + bytes(99), r"is in ONNX Runtime's own format"),
        ("m.tflite", b"\x1c\0\0\0TFL3" + bytes(99), r"is a TFLite model"),
        ("m.safetensors", b"\x50" + bytes(7) + b'{"w":', r"is a safetensors file of weights"),
        ("m.pth", b"\x80\x02}q", r"is a pickle, as torch.save writes it"),
        ("model.pb", b"\x08\x01", r"cannot tell what .*model.pb.*expected a .onnx or .pt2 file"),
        ("bad.pt2", b"PK\x03\x04", r"is not a torch.export archive"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """The error distinguishes the ways in which a file can be bad."""
    path = tmp_path / name
    path.write_bytes(content)
    refuse(str(path), message)


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("m/data/aotinductor/model/m.so", "is a package of AOTInductor"),
        ("m/constants.pkl", "is a TorchScript archive"),
        ("m/data.pkl", "is a checkpoint of torch.save, which has no graph"),
        ("w.npy", "is an archive of numpy arrays"),
        ("m.txt", "is a zip archive without an exported program"),
    ],
)
@pytest.mark.parametrize("suffix", [".pt2", ".onnx", ".pt", ".zip"])
def test_bad_archives(tmp_path: Path, member: str, message: str, suffix: str) -> None:
    """The names in an archive say what it is, whatever its extension."""
    path = tmp_path / f"m{suffix}"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, "x")
    refuse(str(path), message)


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path: Path, kept: float) -> None:
    """A download that was cut off at any point is refused."""
    content = (LIGHT / "light_squeezenet.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(content[: int(len(content) * kept)])
    refuse(str(path), "cut off after")


def test_bad_paths(tmp_path: Path) -> None:
    """A missing file, a directory and an empty path are refused."""
    refuse(str(tmp_path / "none.onnx"), r"no such file: .*none.onnx")
    refuse("resnet-18", r"no such file: 'resnet-18'; did you mean zoo:resnet-18\?")
    refuse(str(tmp_path), r"is a directory")
    refuse("", r"the name of the model is empty")
    refuse("x" * 5000 + ".onnx", r"cannot read")


def test_a_file_above_the_protobuf_limit(tmp_path: Path) -> None:
    """Files above two gigabytes are refused before they are read."""
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    refuse(str(path), r"needs 2.1 GB.*2 GB \(the protobuf limit\)")


def external(path: Path, length: int) -> str:
    """Write a model whose weight is in ``weights.bin``."""
    proto = model([helper.make_node("Add", ["data", "w"], ["y"])], {"data": (1, 4)}, {"y": (1, 4)})
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1, 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    proto.graph.initializer.append(tensor)
    return save(proto, path)


def test_external_data(tmp_path: Path) -> None:
    """Weights in external files are read, and missing or short files named."""
    path = external(tmp_path / "m.onnx", 16)
    refuse(path, r"keeps weights in 'weights.bin', which is missing")
    (tmp_path / "weights.bin").write_bytes(b"\0" * 8)
    refuse(path, r"weights.bin' is cut off: 'm.onnx' needs 16 bytes of it, it has 8")
    (tmp_path / "weights.bin").write_bytes(np.ones(4, np.float32).tobytes())

    network = load_network(path)

    proto = onnx.load_from_string(network.model)
    assert not any(tensor.external_data for tensor in proto.graph.initializer)


def cached(folder: Path) -> Path:
    """Lay a model out as the cache of huggingface_hub does; return its snapshot."""
    external(folder / "m.onnx", 16)
    (folder / "weights.bin").write_bytes(np.ones(4, np.float32).tobytes())
    blobs, snapshot = (folder / "models--us--m" / name for name in ("blobs", "snapshots/1"))
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in ("m.onnx", "weights.bin"):
        (folder / name).rename(blobs / f"{len(name)}")
        (snapshot / name).symlink_to(f"../../blobs/{len(name)}")
    return snapshot


@pytest.mark.parametrize("is_link", [True, False])
def test_external_data_behind_links_of_a_cache(tmp_path: Path, is_link: bool) -> None:
    """Links lead to the blobs of the same model, also if the model itself is a copy."""
    path = cached(tmp_path) / "m.onnx"
    if not is_link:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)

    assert load_network(str(path)).inputs["data"].shape == (1, 4)
    with pytest.raises(ModelError, match="an upload is one file"):
        load_network(str(path), alone=True)


def test_links_beside_a_linked_model(tmp_path: Path) -> None:
    """A link inside of the model's directory, or to that of the linked model, is followed."""
    path = Path(external(tmp_path / "m.onnx", 16))
    (tmp_path / "data").write_bytes(np.ones(4, np.float32).tobytes())
    (tmp_path / "weights.bin").symlink_to("data")
    load_network(str(path))

    other = tmp_path / "other"
    other.mkdir()
    (other / "m.onnx").symlink_to(path)
    (other / "weights.bin").symlink_to(tmp_path / "data")
    load_network(str(other / "m.onnx"))


def test_links_to_other_folders_are_refused(tmp_path: Path) -> None:
    """Neither a file elsewhere nor the blobs of another model are read."""
    snapshot = cached(tmp_path)
    secret = tmp_path / "models--us--other" / "blobs"
    secret.mkdir(parents=True)
    (secret / "weights").write_bytes(b"\0" * 16)
    (snapshot / "weights.bin").unlink()
    (snapshot / "weights.bin").symlink_to(secret / "weights")
    refuse(str(snapshot / "m.onnx"), "keeps weights in 'weights.bin', outside its own directory")


@pytest.mark.parametrize(("key", "value"), [("offset", "-4"), ("length", "-1"), ("length", "x")])
def test_external_data_at_no_valid_place(tmp_path: Path, key: str, value: str) -> None:
    """An offset or a length that is not a number from 0 is refused by the name of the weight."""
    path = Path(external(tmp_path / "m.onnx", 16))
    (tmp_path / "weights.bin").write_bytes(b"\0" * 16)
    proto = onnx.load(path, load_external_data=False)
    places = proto.graph.initializer[0].external_data
    for item in [item for item in places if item.key == key]:
        places.remove(item)
    places.add(key=key, value=value)
    refuse(save(proto, path), "gives weight 'w' no valid offset and length in 'weights.bin'")


@pytest.mark.parametrize("length", [None, "0"])
@pytest.mark.parametrize("kind", ["FLOAT", "BFLOAT16", "INT4", "UINT2"])
def test_external_data_without_a_length(tmp_path: Path, kind: str, length: str | None) -> None:
    """As many bytes are read as the shape needs, also if the file is longer."""
    data_type = TensorProto.DataType.Value(kind)
    data = helper.make_tensor("w", data_type, [3, 3], [1, 0, 1, -2 * (kind != "UINT2")] + [1] * 5)
    content = numpy_helper.from_array(numpy_helper.to_array(data), "w").raw_data
    tensor = TensorProto(name="w", data_type=data_type, dims=[3, 3])
    tensor.data_location = TensorProto.EXTERNAL
    places = {"location": "weights.bin", "offset": "3", "length": length}
    for key, value in places.items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    proto = model([helper.make_node("Identity", ["w"], ["y"])], {}, {"y": (3, 3)})
    proto.graph.initializer.append(tensor)
    (tmp_path / "weights.bin").write_bytes(b"abc" + content + b"more")

    read = onnx_file.read(Path(save(proto, tmp_path / "m.onnx")))

    assert read.graph.initializer[0].raw_data == content


def test_external_data_above_the_protobuf_limit(tmp_path: Path) -> None:
    """External weights count towards the limit."""
    path = external(tmp_path / "m.onnx", 2**31)
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(2**31)
    refuse(path, r"needs 2.1 GB")


def tensor_at(location: str) -> TensorProto:
    """Return a tensor whose data is in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("length", "4")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def hidden(where: str, location: str) -> onnx.ModelProto:
    """Return a model with such a tensor in one of the possible positions."""
    proto = model([helper.make_node("Relu", ["data"], ["y"])], {"data": (1,)}, {"y": (1,)})
    tensor = tensor_at(location)
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    branch = helper.make_graph([constant], "branch", [], [])
    if where == "initializer":
        proto.graph.initializer.append(tensor)
    elif where == "attribute":
        proto.graph.node.append(constant)
    elif where == "subgraph":
        proto.graph.node.append(helper.make_node("If", ["c"], [], then_branch=branch))
    elif where == "sparse":
        proto.graph.sparse_initializer.add().values.CopyFrom(tensor)
    else:
        opset = [helper.make_opsetid("", 17)]
        proto.functions.append(helper.make_function("us", "f", [], ["w"], [constant], opset))
    return proto


PLACES = ("initializer", "attribute", "subgraph", "sparse", "function")


@pytest.mark.parametrize("where", PLACES)
def test_an_upload_is_one_file(tmp_path: Path, where: str) -> None:
    """External data of an upload is not read, wherever its tensor is."""
    (tmp_path / "other.bin").write_bytes(b"\0" * 4)
    path = save(hidden(where, "other.bin"), tmp_path / "m.onnx")

    with pytest.raises(ModelError, match="an upload is one file"):
        load_network(path, alone=True)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin"])
def test_external_data_stays_in_its_directory(tmp_path: Path, where: str, location: str) -> None:
    """Files outside the model's directory are refused, for uploads and others."""
    (tmp_path / "secret.bin").write_bytes(b"\0" * 4)
    (tmp_path / "models" / "a").mkdir(parents=True)

    refuse(save(hidden(where, location), tmp_path / "models" / "m.onnx"), "outside its own")


def test_an_upload_cannot_be_a_pickle(tmp_path: Path) -> None:
    """A .pt2 upload is refused unopened."""
    path = tmp_path / "m.pt2"
    path.write_bytes(b"x")

    with pytest.raises(ModelError, match="upload an ONNX model"):
        load_network(str(path), alone=True)


def test_bad_inputs(tmp_path: Path) -> None:
    """The error shows a valid example, and a fixed batch stays fixed."""
    dynamic = save(relu_model("batch", 3, "h", "w"), tmp_path / "dynamic.onnx")
    fixed = save(relu_model(1, 3), tmp_path / "fixed.onnx")

    refuse(dynamic, r"\(batch, 3, h, w\); for example: data=1,3,224,224 ")
    refuse(dynamic, r"its inputs are 'data'", image=(1, 3, 8, 8))
    refuse(fixed, r"batch dimension is fixed at 1", data=(2, 3))
    refuse(fixed, r"has 1 dimensions", data=(3,))
    refuse(fixed, r"batch dimension is fixed at 1", data=(0, 3))
    refuse(dynamic, r"output .y. has no elements", data=(0, 3, 4, 4))


def test_models_that_the_checker_refuses(tmp_path: Path) -> None:
    """Unknown operators and undefined inputs are refused."""
    for node, message in (
        (helper.make_node("Nonsense", ["data"], ["y"]), "No Op registered for Nonsense"),
        (helper.make_node("Relu", ["nothing"], ["y"]), "nothing"),
    ):
        path = save(model([node], {"data": (1,)}, {"y": (1,)}), tmp_path / "m.onnx")
        refuse(path, f"the ONNX checker refuses the model: .*{message}")


def test_an_output_without_a_fixed_shape(tmp_path: Path) -> None:
    """A shape that depends on the data is refused; an unknown operator is named as such."""
    node = helper.make_node("NonZero", ["data"], ["y"])
    proto = model([node], {"data": (2,)}, {"y": (1, "k")})
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    refuse(save(proto, tmp_path / "m.onnx"), r"nothing in front of NonZero")

    custom = helper.make_node("Foo", ["data"], ["y"], domain="com.acme")
    proto = model([custom], {"data": (2,)}, {"y": ("k",)})
    refuse(save(proto, tmp_path / "m.onnx"), r"without a converter: com.acme.Foo of \(2,\);")


def test_an_output_without_a_shape() -> None:
    """ONNX Runtime takes it, and the checker of onnx does not."""
    proto = relu_model(2, 3)
    proto.graph.output[0].type.tensor_type.ClearField("shape")

    assert clean(proto).outputs["y"].shape == (2, 3)


def test_an_output_without_elements() -> None:
    """It is named as such, whatever computes it."""
    for node, lengths in (
        (helper.make_node("Split", ["data", "n"], ["rest", "y"]), np.array([4, 0])),
        (helper.make_node("Slice", ["data", "n", "n"], ["y"]), np.array([1])),
    ):
        nodes = [node, helper.make_node("Relu", ["y"], ["z"])]
        weights = {"n": lengths}
        for name in ("y", "z"):
            proto = model(nodes, {"data": (4,)}, {name: ("k",)}, weights)
            with pytest.raises(ModelError, match=f"output '{name}' has no elements") as caught:
                clean(proto)
            assert caught.value.code == "not-a-tensor"


def test_the_remedy_is_that_of_the_first_operator_named() -> None:
    """Operators are named by the alphabet, whichever the model has first."""
    nodes = [
        helper.make_node("Foo", ["data"], ["side"], domain="com.acme"),
        helper.make_node("ZipMap", ["data"], ["y"], domain="ai.onnx.ml"),
    ]
    proto = model(nodes, {"data": (2,)}, {"y": ("k",)})

    message = str(refuse_operators(proto, nodes))

    assert re.search("ZipMap of .*, com.acme.Foo of .*; convert the model", message)


def test_a_custom_operator_stays_for_the_engine(tmp_path: Path) -> None:
    """An unknown operator is accepted if the outputs declare their shapes."""
    custom = helper.make_node("Foo", ["data"], ["y"], domain="com.acme")
    proto = model([custom], {"data": (2,)}, {"y": (2,)})

    network = load_network(save(proto, tmp_path / "m.onnx"))

    assert onnx.load_from_string(network.model).graph.node[0].op_type == "Foo"


def test_placeholder_weights_are_pointed_out() -> None:
    """A note recommends random weights, and disappears with them."""
    path = str(LIGHT / "light_squeezenet.onnx")

    assert any("use random weights" in note for note in load_network(path).notes)
    notes = load_network(path, random_weights=3).notes
    assert notes[0] == "weights replaced by random ones (seed 3)"


def test_bad_seeds_and_formats(tmp_path: Path) -> None:
    """Random weights need a seed of at least 0 and an ONNX model."""
    with pytest.raises(ModelError, match="at least 0, got -1"):
        load_network("zoo:mlp", random_weights=-1)
    path = tmp_path / "m.pt2"
    path.write_bytes(b"x")
    with pytest.raises(ModelError, match="ONNX models only"):
        load_network(str(path), random_weights=1)


def test_a_pt2_file_needs_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the message says what to install."""
    path = tmp_path / "m.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/models/model.json", "{}")
    monkeypatch.setitem(sys.modules, "torch", None)
    refuse(str(path), r"needs the extra torch: pip install 'subgraph-tuner\[torch\]'")
