"""Plausible inputs: rules that read the operators of a model, not the names of its inputs."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.tuner.networks import models
from tuner.networks.onnx.inputs.input_values import describe_onnx

if TYPE_CHECKING:
    from tuner.networks.base import ModelFacts

_INT, _FLOAT, _BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
_NINF = np.array(-np.inf, np.float32)


def model_of(
    nodes: list[onnx.NodeProto],
    dtype: int = _INT,
    **constants: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]",
) -> onnx.ModelProto:
    """Return a model with input ``x`` of shape (1, 4), floats ``f`` and output ``y``."""
    return models.model(
        nodes, {"x": (1, 4), "f": (1, 4)}, {"y": None}, constants, kinds={"x": dtype}
    )


def node(kind: str, *inputs: str, out: str = "y", **attributes: object) -> onnx.NodeProto:
    """Return a node."""
    return helper.make_node(kind, list(inputs), [out], **attributes)


def values_of(model: onnx.ModelProto) -> tuple[int, int]:
    """Return the lowest and highest value of ``x``."""
    values = describe_onnx(model).ranges["x"]
    return values.low, values.high


_TABLE = np.zeros((30, 8), np.float32)


@pytest.mark.parametrize(
    "model",
    [
        model_of([node("Gather", "table", "x")], table=_TABLE),
        model_of([node("Gather", "table", "x", axis=1)], table=_TABLE.T.copy()),
        model_of(
            [
                node("Cast", "x", out="a", to=TensorProto.INT32),
                node("Reshape", "a", "shape", out="b"),
                node("Gather", "table", "b"),
            ],
            table=_TABLE,
            shape=np.array([4]),
        ),
        model_of(
            [node("Add", "x", "two", out="a"), node("Gather", "table", "a")],
            table=np.zeros((32, 8), np.float32),
            two=np.array(2),
        ),
        model_of(
            [node("Gather", "table", "x", out="a"), node("Gather", "small", "x", out="y")],
            table=np.zeros((99, 8), np.float32),
            small=_TABLE,
        ),
        model_of([node("OneHot", "x", "depth", "on")], depth=np.array(30), on=np.array([0.0, 1.0])),
        model_of([node("Identity", "table", out="t"), node("Gather", "t", "x")], table=_TABLE),
    ],
    ids=["gather", "axis", "views", "offset", "smallest", "one hot", "inferred shape"],
)
def test_index_lies_within_the_rows(model: onnx.ModelProto) -> None:
    """Token ids are drawn from the whole vocabulary, and never beyond it."""
    assert values_of(model) == (0, 29)


@pytest.mark.parametrize(
    "model",
    [
        model_of([node("Cast", "x", to=_FLOAT)]),
        model_of(
            [node("Cast", "x", out="b", to=_BOOL), node("Where", "b", "f", "ninf")], ninf=_NINF
        ),
        model_of([node("Equal", "x", "zero")], zero=np.array(0)),
        model_of([node("Equal", "x", "one")], one=np.array(1)),
        model_of([node("Greater", "x", "zero")], zero=np.array(0)),
    ],
    ids=["cast", "condition", "equal 0", "equal 1", "greater 0"],
)
def test_mask_is_ones(model: onnx.ModelProto) -> None:
    """A number that becomes a float or a condition is an attention mask without padding."""
    assert values_of(model) == (1, 1)


def test_length_is_full() -> None:
    """A number compared with positions is the number of positions."""
    model = model_of([node("Less", "positions", "x")], positions=np.arange(12)[None])

    assert values_of(model) == (12, 12)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_boolean_keeps_the_scores(first: bool, flip: bool) -> None:
    """A condition selects the scores, not the constant that masks them, through Not as well."""
    branches = ("ninf", "f") if first else ("f", "ninf")
    nodes = [node("Not", "x", out="c")] if flip else [node("Identity", "x", out="c")]
    model = model_of([*nodes, node("Where", "c", *branches)], _BOOL, ninf=_NINF)

    keep = int(first == flip)
    assert values_of(model) == (keep, keep)


def test_bytes_take_every_value() -> None:
    """An image of bytes uses all of them."""
    model = model_of([node("Cast", "x", to=_FLOAT)], TensorProto.UINT8)

    assert values_of(model) == (0, 255)


def test_unknown_use_is_safe_as_an_index() -> None:
    """Numbers of which nothing is known are 0 or 1."""
    assert values_of(model_of([node("Mul", "x", "x")])) == (0, 1)


@pytest.mark.parametrize(
    ("made", "constant", "precision"),
    [
        (node("Relu", "f"), np.ones(4, np.float32), "float32"),
        (node("Cast", "f", to=TensorProto.FLOAT16), np.ones(4, np.float32), "float16"),
        (node("Cast", "f", to=TensorProto.BFLOAT16), np.ones(4, np.float32), "bfloat16"),
        (node("Mul", "f", "w"), np.ones(4, np.float16), "float16"),
        (node("QuantizeLinear", "f", "w"), np.array(0.1, np.float32), "quantised"),
    ],
)
def test_precision_is_the_coarsest(
    made: onnx.NodeProto,
    constant: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]",
    precision: str,
) -> None:
    """It follows weights, casts and quantisation, not only inputs and outputs."""
    assert describe_onnx(model_of([made], w=constant)).precision == precision


def test_exported_program_indices(tmp_path: Path) -> None:
    """Embeddings of a torch program bound their ids; other numbers are ones."""
    torch = pytest.importorskip("torch")

    class Text(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(30, 4)

        def forward(self, ids: object, mask: object) -> object:
            return self.table(ids.unsqueeze(0)).half() * mask[:, None]  # type: ignore[attr-defined, index]

    example = (torch.zeros(5, dtype=torch.int64), torch.ones(5, dtype=torch.int64))
    torch.export.save(torch.export.export(Text(), example), tmp_path / "text.pt2")

    from tuner.networks.torch.torch_values import describe_pt2

    facts: ModelFacts = describe_pt2(str(tmp_path / "text.pt2"))
    assert {name: (values.low, values.high) for name, values in facts.ranges.items()} == {
        "ids": (0, 29),
        "mask": (1, 1),
    }
