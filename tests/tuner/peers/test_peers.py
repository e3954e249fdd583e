"""Every peer runs the user's own file, as it is, with fixed shapes."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.networks.classifiers import classifier
from tests.tuner.networks.models import run as run_onnx
from tuner.engines.base import NetworkRun
from tuner.errors import RequestError
from tuner.library.arrays import Array, read_arrays, write_arrays
from tuner.networks.onnx.cleaning import clean
from tuner.peers.base import Device, Peer, PeerModel, read_inputs
from tuner.peers.catalogue import PEERS, PeerPackage

# torch.compile warns of parts of torch itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

_WEIGHT = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
_INPUTS = {"x": ((2, 6), "float32")}
_COMPILER = "torch-compile"


def save_onnx(path: Path) -> None:
    """Write a model with a dynamic batch, an input without use, external data, and two outputs."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("ArgMax", ["y"], ["k"], axis=1, keepdims=0),
        ],
        "g",
        [value("x", TensorProto.FLOAT, ["n", 6]), value("unused", TensorProto.INT64, ["n", 1])],
        [value("y", TensorProto.FLOAT, ["n", 4]), value("k", TensorProto.INT64, ["n"])],
        [numpy_helper.from_array(_WEIGHT, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)


def save_pt2(path: Path) -> None:
    """Write an exported program of the same function."""
    import torch

    class Two(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
            y = x @ torch.from_numpy(_WEIGHT)
            return y, y.argmax(1)

    torch.export.save(torch.export.export(Two(), (torch.zeros(2, 6),)), path)


_SAVE: dict[str, Callable[[Path], None]] = {"onnx": save_onnx, "pt2": save_pt2}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            package,
            id=package.name,
            marks=[pytest.mark.slow("20 s: compiles C++")] if package.name == _COMPILER else [],
        )
        for package in PEERS
        if not package.needs_gpu
    ],
)
def peer(request: pytest.FixtureRequest) -> Peer:
    """Each peer in turn."""
    if not request.param.is_installed():
        pytest.skip(f"{request.param.name} is not installed")
    return cast("Peer", import_module(request.param.module))


@pytest.fixture(scope="module")
def model(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> PeerModel:
    """A model in the format of the peer, loaded and compiled once."""
    (package,) = (package for package in PEERS if package.module == peer.__name__)  # type: ignore[attr-defined]
    (kind,) = package.formats
    path = tmp_path_factory.mktemp(package.name) / f"model.{kind}"
    _SAVE[kind](path)
    unused = {"unused": ((2, 1), "int64")} if kind == "onnx" else {}
    return PeerModel(str(path), {**_INPUTS, **unused}, {"n": 2}, 1, "cpu")


def run(peer: Peer, model: PeerModel, x: Array, n_runs: int = 0) -> tuple[list[Array], int]:
    """Run a model; return its outputs and the number of samples."""
    folder = Path(model.path).parent
    write_arrays(folder / "inputs.npz", {"x": x})
    request = NetworkRun("", str(folder / "inputs.npz"), str(folder / "outputs.npz"), n_runs)
    samples = peer.run_model(model, request)
    assert all(secs > 0 for secs in samples)
    return list(read_arrays(folder / "outputs.npz").values()), len(samples)


def test_outputs_are_those_of_the_model(peer: Peer, model: PeerModel) -> None:
    """In their order, of their dtypes; a dimension that is dynamic in the file has its size."""
    x = np.random.default_rng(1).standard_normal((2, 6)).astype(np.float32)

    (y, k), n_samples = run(peer, model, x, n_runs=3)

    np.testing.assert_allclose(y, x @ _WEIGHT, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(k, (x @ _WEIGHT).argmax(1))
    assert (k.dtype, n_samples) == (np.int64, 3)


def test_inputs_are_read_in_c_order(tmp_path: Path) -> None:
    """Whatever the order in the file: peers may take only their address."""
    x = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    write_arrays(tmp_path / "inputs.npz", {"x": x, "scalar": np.array(1.0)})
    request = NetworkRun("", str(tmp_path / "inputs.npz"), "", 0)

    arrays = read_inputs(PeerModel("m", {"x": ((2, 3), "float64")}, {}, 1, "cpu"), request)

    assert arrays["x"].flags.c_contiguous
    assert arrays["scalar"].shape == ()
    np.testing.assert_array_equal(arrays["x"], x)


def test_a_graph_of_other_shapes_or_dtypes_is_captured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs are not broadcast to those of a graph of the same file."""
    torch = pytest.importorskip("torch")
    from tuner.peers import torch_cuda_graph

    class OnCpu:
        """Copies the input where CUDA would replay a graph."""

        def __init__(self, inputs: list[object]) -> None:
            self.inputs, self.output = inputs, torch.empty(0)

        def replay(self) -> None:
            self.output.resize_(self.inputs[0].shape).copy_(self.inputs[0])  # type: ignore[attr-defined]

    def capture(_: object, inputs: list[object]) -> tuple[OnCpu, list[object], object]:
        graph = OnCpu(inputs)
        return graph, inputs, graph.output

    monkeypatch.setattr(torch_cuda_graph, "_capture", capture)
    monkeypatch.setattr(torch_cuda_graph, "module_of", lambda _: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch_cuda_graph, "_graphs", {})
    model = PeerModel(str(tmp_path / "m.pt2"), {"x": ((2, 2), "float32")}, {}, 1, "cpu")

    for x in (np.ones((2, 2), np.float32), np.ones((1, 2), np.float32), np.ones((2, 2), np.int64)):
        (output,), _ = run(torch_cuda_graph, model, x)
        assert output.shape == x.shape
    assert len(torch_cuda_graph._graphs) == 3


def test_description_has_version_and_device(peer: Peer, model: PeerModel) -> None:
    """The version begins with a number; a compiler says how long it took."""
    info = peer.load_model(model)

    assert info.version[0].isdigit()
    assert info.device == "cpu"
    compiles = peer.__name__.endswith("torch_compile")  # type: ignore[attr-defined]
    assert bool(re.fullmatch(r"compiled in [0-9.]+ s", info.note)) == compiles


@pytest.mark.parametrize(
    "package",
    [package for package in PEERS if package.needs_gpu],
    ids=lambda package: package.name,
)
@pytest.mark.parametrize(("device", "reason"), [("cpu", "of a CPU"), ("cuda", "has none here")])
def test_peer_of_gpus_says_that_it_needs_one(
    package: PeerPackage, device: Device, reason: str
) -> None:
    """The library is of a CPU, or the peer finds no GPU."""
    if not package.is_installed():
        pytest.skip(f"{package.name} is not installed")

    with pytest.raises(RequestError, match=f"{package.name} needs a GPU: .*{reason}"):
        import_module(package.module).load_model(PeerModel("m", _INPUTS, {}, 1, device))


def test_unreadable_model_is_one_line(peer: Peer, model: PeerModel) -> None:
    """Errors of the runtime become an error of the request."""
    bad = Path(model.path).with_name(f"bad{Path(model.path).suffix}")
    bad.write_bytes(b"not a model")

    with pytest.raises(RequestError, match="cannot load the model") as raised:
        peer.load_model(PeerModel(str(bad), _INPUTS, {}, 1, "cpu"))
    assert "\n" not in str(raised.value)


def test_run_that_fails_is_one_line(peer: Peer, model: PeerModel) -> None:
    """Inputs of another shape."""
    with pytest.raises(RequestError, match="cannot run the model"):
        run(peer, model, np.zeros((2, 5), np.float32))


@pytest.mark.parametrize("package", PEERS, ids=lambda package: package.name)
def test_missing_peer_says_how_to_install_it(package: PeerPackage) -> None:
    """Each extra exists; without one, the packages are named."""
    import tomllib

    from tests.cli import ROOT

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if package.extra:
        assert package.extra in extras["optional-dependencies"]
        assert f"[{package.extra}]" in package.fix
    else:
        assert package.fix == f"pip install {' '.join(package.packages)}"


def test_onnxruntime_returns_maps_of_scores_as_the_library_does(tmp_path: Path) -> None:
    """A column for each label, in their order."""
    onnxruntime = cast("Peer", import_module("tuner.peers.onnxruntime"))
    path = tmp_path / "model.onnx"
    onnx.save(classifier(classlabels_int64s=[7, -3, 5]), path)
    data = np.random.default_rng(0).standard_normal((2, 4), dtype=np.float32)
    write_arrays(tmp_path / "inputs.npz", {"data": data})
    model = PeerModel(str(path), {"data": ((2, 4), "float32")}, {"n": 2}, 1, "cpu")
    inputs, outputs = str(tmp_path / "inputs.npz"), str(tmp_path / "outputs.npz")

    onnxruntime.run_model(model, NetworkRun("", inputs, outputs, 0))

    network = clean(onnx.load(path), {"data": (2, 4)})
    (_, scores) = run_onnx(network.model, {"data": data})
    np.testing.assert_allclose(read_arrays(outputs)["output_1"], scores, atol=1e-6)
