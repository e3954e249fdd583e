"""Normalisations spelled as arithmetic become one kernel and compute the same."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.tuner.engines.relax.conftest import Array, Save, draw
from tests.tuner.engines.relax.test_lowering import checked_names, names_of, outputs_of
from tests.tuner.networks.models import difference
from tuner.engines.base import ModelFile, TargetInfo

_CONSTANTS = {
    "two": np.array(2.0, "float32"),
    "half": np.array(0.5, "float32"),
    "one": np.array(1.0, "float32"),
    "eps": np.array(1e-5, "float32"),
    "gamma": np.abs(draw(24, seed=1)) + 0.5,
    "beta": draw(24, seed=2),
}


def _node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def _model(
    save: Save, nodes: list[onnx.NodeProto], shape: tuple[int, ...], **more: Array
) -> ModelFile:
    weights = {**_CONSTANTS, **more}
    used = {name for node in nodes for name in node.input}
    return save(nodes, shape, {name: array for name, array in weights.items() if name in used})


_MEAN = _node("ReduceMean", "data", "m", axes=[-1])
_CENTRED = _node("Sub", "data m", "c")
_SQUARE = _node("Pow", "c two", "s")
_PRODUCT = _node("Mul", "c c", "s")
_MOMENT = _node("ReduceMean", "s", "v", axes=[-1])
_SUM = _node("Add", "v eps", "e")
_ROOT = _node("Sqrt", "e", "r")
_QUOTIENT = _node("Div", "c r", "n")
_AFFINE = [_node("Mul", "n gamma", "g"), _node("Add", "beta g", "y")]
_START = [_MEAN, _CENTRED]


@pytest.mark.parametrize(
    "nodes",
    [
        [*_START, _SQUARE, _MOMENT, _SUM, _ROOT, _QUOTIENT, *_AFFINE],
        [*_START, _PRODUCT, _MOMENT, _SUM, _node("Pow", "e half", "r"), _QUOTIENT, *_AFFINE],
        [
            *(*_START, _SQUARE, _MOMENT, _node("Add", "eps v", "e"), _ROOT),
            *(_node("Div", "one r", "i"), _node("Mul", "i c", "n"), *_AFFINE),
        ],
    ],
    ids=["power", "product", "reciprocal"],
)
def test_a_layer_norm_is_one_kernel(
    save: Save, target: TargetInfo, nodes: list[onnx.NodeProto]
) -> None:
    """Each spelling is found, with its scale and shift."""
    assert len(checked_names(_model(save, nodes, (2, 7, 24)), target)) == 1


def test_a_root_mean_square_norm_is_one_kernel(save: Save, target: TargetInfo) -> None:
    """Without a mean that is subtracted, the data itself are scaled."""
    nodes = [
        _node("Pow", "data two", "s"),
        *(_MOMENT, _SUM, _ROOT, _node("Div", "data r", "n"), _node("Mul", "gamma n", "y")),
    ]

    assert len(checked_names(_model(save, nodes, (2, 7, 24)), target)) == 1


@pytest.mark.parametrize("is_centred", [True, False], ids=["layer-norm", "rms-norm"])
def test_a_norm_over_all_axes_agrees(save: Save, target: TargetInfo, *, is_centred: bool) -> None:
    """Statistics are single numbers then."""
    data = "c" if is_centred else "data"
    nodes = [
        _node("ReduceMean", "data", "m", axes=[0, 1]),
        *(_CENTRED, _node("Pow", f"{data} two", "s"), _node("ReduceMean", "s", "v", axes=[0, 1])),
        *(_SUM, _ROOT, _node("Div", f"{data} r", "n"), _node("Mul", "gamma n", "y")),
    ]

    assert checked_names(_model(save, nodes, (7, 24)), target)


@pytest.mark.parametrize("is_centred", [True, False], ids=["layer-norm", "rms-norm"])
def test_a_norm_over_the_channels_between_convolutions_needs_no_transpose(
    save: Save, target: TargetInfo, *, is_centred: bool
) -> None:
    """It is one kernel, in the layout of the convolutions."""
    data, moment = "c" if is_centred else "x", _node("ReduceMean", "s", "v", axes=[1])
    nodes = [
        _node("Conv", "data w", "x"),
        _node("ReduceMean", "x", "m", axes=[1]),
        _node("Sub", "x m", "c"),
        *(_node("Pow", f"{data} two", "s"), moment, _SUM, _ROOT, _node("Div", f"{data} r", "n")),
        *(
            _node("Mul", "scale n", "g"),
            _node("Add", "g shift", "a") if is_centred else None,
            _node("Conv", "a v1" if is_centred else "g v1", "y"),
        ),
    ]
    weights = {"w": draw(8, 3, 3, 3), "v1": draw(4, 8, 1, 1, seed=1)}
    weights |= {"scale": draw(8, 1, 1, seed=2), "shift": draw(8, 1, 1, seed=3)}
    model = _model(save, [node for node in nodes if node is not None], (1, 3, 9, 11), **weights)

    names = [name.partition("[")[0] for name in checked_names(model, target)]

    assert len([name for name in names if "norm" in name]) == 1
    assert len(names) == 5, names  # only the input and the output are transposed


def test_a_norm_over_the_channels_of_a_sequence_agrees(save: Save, target: TargetInfo) -> None:
    """Without layouts around it, too, and with a scale of each position left outside."""
    nodes = [
        _node("ReduceMean", "data", "m", axes=[1]),
        *(_CENTRED, _SQUARE, _node("ReduceMean", "s", "v", axes=[1]), _SUM, _ROOT, _QUOTIENT),
        *(_node("Mul", "n scale", "g"), _node("Mul", "g place", "y")),
    ]
    weights = {"scale": draw(8, 1, seed=2), "place": draw(8, 11, seed=3)}

    assert checked_names(_model(save, nodes, (2, 8, 11), **weights), target)


def test_another_mean_is_not_taken_for_a_norm(save: Save, target: TargetInfo) -> None:
    """The variance of one axis and the mean of another stay arithmetic."""
    nodes = [
        _node("ReduceMean", "data", "m", axes=[1]),
        *(_CENTRED, _SQUARE, _MOMENT, _SUM, _ROOT, _QUOTIENT, *_AFFINE),
    ]

    names = checked_names(_model(save, nodes, (2, 7, 24)), target)

    assert not [name for name in names if "layer_norm" in name]


@pytest.mark.parametrize(("channels_last", "mean"), [(False, 1000.0), (True, 0.0)])
def test_a_group_norm_and_its_tail_agree(
    save: Save, target: TargetInfo, *, channels_last: bool, mean: float
) -> None:
    """An instance norm between reshapes is a group norm, accurate for large means, too."""
    nodes = [
        _node("Add", "data mean", "d"),
        _node("Reshape", "d groups", "x"),
        _node("InstanceNormalization", "x ones zeros", "n"),
        _node("Reshape", "n whole", "w"),
        _node("Mul", "w scale", "g"),
        _node("Add", "g shift", "a"),
        *(_node("Sigmoid", "a", "z"), _node("Mul", "a z", "y")),
    ]
    if channels_last:
        nodes[0] = _node("Conv", "data kernel mean", "d")
    model = _model(
        save,
        nodes,
        (2, 24, 5, 6),
        mean=np.full(24 if channels_last else 1, mean, "float32"),
        kernel=draw(24, 24, 1, 1),
        groups=np.array([2, 4, -1]),
        whole=np.array([2, 24, 5, 6]),
        ones=np.ones(4, "float32"),
        zeros=np.zeros(4, "float32"),
        scale=_CONSTANTS["gamma"].reshape(24, 1, 1),
        shift=_CONSTANTS["beta"].reshape(24, 1, 1),
    )

    actual, expected = outputs_of(model, target)

    names = names_of(model, target)
    assert not [name for name in names if "variance" in name]
    assert [name for name in names if "group_norm" in name]
    assert not channels_last or [name for name in names if "group_norm_tir_sigmoid" in name]
    # Of a mean of 1000, float32 leaves four digits of what varies.
    assert difference(actual, expected) < (1e-5 if mean == 0 else 3e-4)


def test_an_instance_norm_between_convolutions_needs_no_transpose(
    save: Save, target: TargetInfo
) -> None:
    """A layer norm over the positions would need the channels first."""
    nodes = [
        _node("Conv", "data first", "x"),
        _node("InstanceNormalization", "x scale zeros", "n"),
        _node("Relu", "n", "r"),
        _node("Conv", "r second", "y"),
    ]
    model = _model(
        save,
        nodes,
        (2, 16, 6, 7),
        first=draw(24, 16, 3, 3, seed=1),
        second=draw(16, 24, 3, 3, seed=2),
        scale=np.full(24, 0.5, "float32"),
        zeros=np.zeros(24, "float32"),
    )

    names = checked_names(model, target)

    assert sum("transpose" in name for name in names) <= 2
    assert not [name for name in names if "layer_norm" in name]
