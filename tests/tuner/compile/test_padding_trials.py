"""Trials of padding on models that mix rows, mask them, or do neither."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tuner.compile import hostile_peer
from tests.tuner.networks.models import Array, model
from tuner.compile import padding_trials
from tuner.compile.padding_trials import PaddingTrials, UnpaddedModel
from tuner.engines.base import ModelFile
from tuner.errors import MalformedAnswer, RequestError
from tuner.library.buckets import BucketedDimension, Buckets, SummedDimension
from tuner.library.limits import InputLimit
from tuner.library.manifest import Source
from tuner.networks.base import LoadedModel, ModelFacts
from tuner.networks.onnx.cleaning import declared_inputs
from tuner.networks.originals import Original
from tuner.networks.shapes import dynamic_dimensions
from tuner.peers.catalogue import PeerPackage
from tuner.workers.pool import Pool, WorkerSettings

Sizes = dict[str, tuple[int, ...]]
_FACTS = ModelFacts({}, "float32")


@dataclass(frozen=True)
class InProcess(UnpaddedModel):
    """ONNX Runtime in this process, which takes milliseconds."""

    def run(self, arrays: Mapping[str, Array], shapes: Mapping[str, Any]) -> list[Array]:
        """Run the model; inputs without use are zeros."""
        zeros = {
            name: np.zeros(shapes[name], dtype)
            for name, (_, dtype) in self.original.inputs.items()
            if name not in arrays
        }
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            self.original.path, options, providers=["CPUExecutionProvider"]
        )
        try:
            outputs: list[Array] = session.run(None, {**zeros, **arrays})
        except Exception as error:
            raise RequestError(str(error)) from error
        return outputs


def trials(
    proto: onnx.ModelProto,
    folder: Path,
    sizes: Sizes,
    limits: tuple[InputLimit, ...] = (),
    **masks: float,
) -> dict[str, BucketedDimension]:
    """Try a model and return its dimensions by name."""
    path = folder / "m.onnx"
    onnx.save(proto, path)
    dimensions = dynamic_dimensions(declared_inputs(proto))
    largest = {name: own[-1] for name, own in sizes.items()}
    largest |= {
        each.name: sum(largest[part] for part in each.parts) for each in dimensions if each.parts
    }
    inputs = {
        info.name: (
            tuple(
                largest[dim.dim_param] if dim.dim_param else dim.dim_value
                for dim in info.type.tensor_type.shape.dim
            ),
            str(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)),
        )
        for info in proto.graph.input
    }
    outputs = {info.name: ((-1,), "float32") for info in proto.graph.output}
    loaded = LoadedModel(
        "m", "0" * 64, ModelFile(str(path), "onnx", inputs), outputs, (), Source("m"), limits=limits
    )
    buckets = Buckets(
        tuple(
            BucketedDimension(each.name, sizes[each.name], each.axes)
            for each in dimensions
            if not each.parts
        ),
        masks,
        tuple(
            SummedDimension(each.parts, each.offset, each.axes) for each in dimensions if each.parts
        ),
    )
    original = Original(str(path), "onnx", "m.onnx", inputs, {})
    peer: Any = InProcess(None, None, original, 1.0)  # type: ignore[arg-type]
    checked = PaddingTrials(peer, _FACTS, dimensions, loaded, buckets).checked()
    return {each.name: each for each in checked.dimensions}


def test_a_mask_of_old_and_new_tokens_grows_with_both(tmp_path: Path) -> None:
    """New tokens are padded behind them all; old ones would be followed by the padding."""
    nodes = [
        helper.make_node("Concat", ["past", "data"], ["keys"], axis=0),
        helper.make_node("Transpose", ["keys"], ["columns"]),
        helper.make_node("MatMul", ["data", "columns"], ["scores"]),
        helper.make_node("Exp", ["scores"], ["powers"]),
        helper.make_node("Mul", ["powers", "mask"], ["kept"]),
        helper.make_node("MatMul", ["kept", "keys"], ["sums"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["totals"], keepdims=1),
        helper.make_node("Div", ["sums", "totals"], ["y"]),
    ]
    proto = model(
        nodes,
        {"past": ("p", 3), "data": ("s", 3), "mask": ("p + s",)},
        {"y": ("s", 3)},
        {"axis": np.array([1])},
    )

    checked = trials(proto, tmp_path, {"p": (2, 4), "s": (2, 4)}, mask=0.0)

    assert not checked["s"].problem
    assert checked["s"].outputs == {"y": (0,)}
    assert "changes" in checked["p"].problem


def test_rows_that_do_not_mix_are_padded(tmp_path: Path) -> None:
    """A product and an activation keep rows apart; the axis of the output is found."""
    weights = {"w": np.random.default_rng(0).random((3, 5), np.float32)}
    nodes = [
        helper.make_node("MatMul", ["data", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    proto = model(nodes, {"data": ("batch", 3)}, {"y": ("batch", 5)}, weights)

    (batch,) = trials(proto, tmp_path, {"batch": (1, 4)}).values()

    assert batch.problem == ""
    assert batch.outputs == {"y": (0,)}
    assert batch.min_size == 1


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        # Zeros change the mean at once; a maximum only where the padding is larger.
        (helper.make_node("ReduceMean", ["data"], ["y"], axes=[0]), "with zeros as padding, n=1"),
        (helper.make_node("ReduceMax", ["data"], ["y"], axes=[0]), "with large values as padding"),
        (helper.make_node("Reshape", ["data", "flat"], ["y"]), "does not grow with it alone"),
        (helper.make_node("Concat", ["data", "data"], ["y"], axis=0), "does not grow with it"),
        (helper.make_node("Softmax", ["data"], ["y"], axis=0), "with zeros as padding"),
    ],
)
def test_rows_that_mix_are_not_padded(node: onnx.NodeProto, problem: str, tmp_path: Path) -> None:
    """The reason names the output, the size, and what was in the padding."""
    proto = model([node], {"data": ("n", 3)}, {"y": ()}, {"flat": np.array([-1], np.int64)})
    proto.graph.output[0].type.tensor_type.ClearField("shape")

    (dimension,) = trials(proto, tmp_path, {"n": (3, 6)}).values()

    assert problem in dimension.problem
    assert "output 'y'" in dimension.problem
    assert dimension.outputs == {}


@pytest.mark.parametrize(("low", "is_padded"), [(-6, False), (0, True), (None, True)])
def test_indices_that_count_from_the_end_would_read_the_padding(
    low: int | None, is_padded: bool, tmp_path: Path
) -> None:
    """Indices that count from the start do not."""
    node = helper.make_node("GatherND", ["data", "i"], ["y"])
    proto = model([node], {"data": ("n", 3), "i": (2, 1)}, {"y": (2, 3)})
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    limits = (InputLimit("i", "GatherND", low, None if low is None else 5),)

    (dimension,) = trials(proto, tmp_path, {"n": (3, 6)}, limits).values()

    assert bool(dimension.problem) != is_padded


def masked_mean() -> onnx.ModelProto:
    """Make a mean over the elements of each row that a mask keeps."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["data", "m"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "axes"], ["sum"], keepdims=0),
            helper.make_node("ReduceSum", ["m", "axes"], ["count"], keepdims=0),
            helper.make_node("Div", ["sum", "count"], ["y"]),
        ],
        "masked",
        [
            value("data", TensorProto.FLOAT, ["batch", "length"]),
            value("attention_mask", TensorProto.INT64, ["batch", "length"]),
        ],
        [value("y", TensorProto.FLOAT, ["batch"])],
        [numpy_helper.from_array(np.array([1]), "axes")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_mask_makes_a_length_safe(tmp_path: Path) -> None:
    """Masked rows may be anything, NaN too, because they are cut; without a mask, means change."""
    sizes: Sizes = {"batch": (1, 3), "length": (4, 8)}

    padded = trials(masked_mean(), tmp_path, sizes, attention_mask=0.0)
    assert [each.problem for each in padded.values()] == ["", ""]
    assert padded["batch"].outputs == {"y": (0,)}
    assert padded["length"].outputs == {}

    unmasked = trials(masked_mean(), tmp_path, sizes)
    assert unmasked["batch"].problem == ""
    assert "output 'y' changes" in unmasked["length"].problem


def test_flat_rows_are_cut_along_neither_dimension(tmp_path: Path) -> None:
    """With one row in a batch they are as long as the length, with more they are not."""
    nodes = [helper.make_node("Reshape", ["data", "flat"], ["y"])]
    weights = {"flat": np.array([-1, 2], np.int64)}
    proto = model(nodes, {"data": ("batch", "length", 2)}, {"y": ("rows", 2)}, weights)

    tried = trials(proto, tmp_path, {"batch": (1, 4), "length": (2, 4)})

    assert "does not grow with it alone" in tried["batch"].problem
    assert "does not grow with it alone" in tried["length"].problem


def test_dimensions_are_tried_together(tmp_path: Path) -> None:
    """An output that changes only where both are below their buckets refuses both."""
    nodes = [
        helper.make_node("Shape", ["data"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["sizes"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["sizes", "largest"], ["missing"]),
        helper.make_node("ReduceProd", ["missing"], ["corner"], keepdims=0),
        helper.make_node("Add", ["data", "corner"], ["y"]),
    ]
    weights = {"largest": np.array([4, 8], np.float32)}
    proto = model(nodes, {"data": ("batch", "length")}, {"y": ("batch", "length")}, weights)

    tried = trials(proto, tmp_path, {"batch": (4,), "length": (8,)})

    assert "padding 'batch' and 'length' together fails" in tried["batch"].problem
    assert "padding 'batch' and 'length' together fails" in tried["length"].problem


def test_the_smallest_size_is_found(tmp_path: Path) -> None:
    """A window of five elements needs five; smaller inputs are refused, not padded."""
    weights = {"w": np.ones((1, 1, 5), np.float32)}
    nodes = [
        helper.make_node("Conv", ["data", "w"], ["h"]),
        helper.make_node("ReduceMax", ["h"], ["y"], axes=[2]),
    ]
    proto = model(nodes, {"data": (1, 1, "length")}, {"y": (1, 1, 1)}, weights)

    (length,) = trials(proto, tmp_path, {"length": (8, 16)}).values()

    assert length.min_size == 5
    assert "output 'y' changes" in length.problem


def test_outputs_that_show_no_difference_prove_nothing(tmp_path: Path) -> None:
    """An index that is the same for all drawn inputs hides what padding does to the mean."""
    weights = {"offset": np.array([0.0, 100.0, 0.0], np.float32)}
    nodes = [
        helper.make_node("ReduceMean", ["data"], ["mean"], axes=[0]),
        helper.make_node("Add", ["mean", "offset"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["y"], axis=1),
    ]
    proto = model(nodes, {"data": ("n", 3)}, {"y": ()}, weights)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64

    (dimension,) = trials(proto, tmp_path, {"n": (2, 4)}).values()

    assert "proves nothing" in dimension.problem


@dataclass(frozen=True)
class HostilePeer(PeerPackage):
    """A runtime at the mercy of its model."""

    @property
    def module(self) -> str:
        """Module of the hostile function."""
        return hostile_peer.NAME


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A process for the hostile peer."""
    log = tmp_path_factory.mktemp("worker") / "worker.log"
    with Pool(WorkerSettings(1, log)) as opened:
        yield opened


@pytest.mark.parametrize("kind", ["link", "pipe", "replaced folder", "bomb", "one array"])
def test_outputs_of_a_hostile_run_are_refused(
    worker: Pool, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither files of the user are read, nor what would fill the memory, nor a pipe."""
    monkeypatch.setattr(padding_trials, "_MAX_OUTPUT_BYTES", 10_000)
    own = tmp_path / "outputs.npz"
    np.savez(own, output_0=np.zeros(1))
    content = own.read_bytes()

    with pytest.raises(MalformedAnswer, match=r"cannot be read|which is not a file"):
        hostile(worker, own, kind).run({}, {})

    assert own.read_bytes() == content


def test_inputs_are_not_written_through_a_link(worker: Pool, tmp_path: Path) -> None:
    """A run may leave one where the inputs of the next run would be."""
    own = tmp_path / "tuner.db"
    own.write_text("rows")
    peer = hostile(worker, own, "input link")

    for _ in range(2):
        assert len(peer.run({"data": np.zeros(3)}, {})) == 1

    assert own.read_text() == "rows"


def hostile(worker: Pool, victim: Path, kind: str) -> UnpaddedModel:
    """Make a model that attacks a file."""
    package = HostilePeer("hostile", frozenset({"onnx"}), "", ())
    return UnpaddedModel(worker, package, Original(f"{kind}:{victim}", "onnx", "m", {}, {}), 30.0)
