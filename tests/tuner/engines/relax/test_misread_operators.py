"""Operators that TVM's importer misreads compute the outputs of ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.tuner.engines.relax.conftest import draw
from tests.tuner.engines.relax.networks import names_of, run_lowered
from tests.tuner.engines.relax.operator_cases import Case, Family, case, combine
from tests.tuner.networks.models import Array, model
from tuner.engines.base import TargetInfo

_PICTURE = draw(1, 2, 5, 7)
_ODD = draw(2, 2, 7, 9)
_EVEN = draw(2, 2, 6, 8)


def _upsample(name: str, *scales: float, opset: int = 9, mode: str = "nearest") -> Case:
    data = _PICTURE if len(scales) == 4 else draw(*(1, 2, 3, 4, 5)[: len(scales)])
    if opset < 9:
        return case(name, "Upsample", data, scales=[float(n) for n in scales], mode=mode)
    return case(name, "Upsample", data, weights=[np.array(scales, "float32")], mode=mode)


_OLD_UPSAMPLE = [
    _upsample("doubled", 1, 1, 2, 2, opset=8),
    _upsample("thirds", 1, 1, 1.5, 1.7, opset=8),
    _upsample("batch", 2, 1, 2.3, 3, opset=8),
    _upsample("linear", 1, 1, 2.3, 3, opset=8, mode="linear"),
    # Eleven pixels in float32, and ten in float64.
    _upsample("sevenths", 1, 1, 1, 11 / 7, opset=8),
]
_UPSAMPLE = [
    _upsample("doubled", 1, 1, 2, 2),
    _upsample("thirds", 1, 1, 1.5, 1.7),
    _upsample("linear", 1, 1, 2, 2, mode="linear"),
    _upsample("line", 1, 1, 1.5),
    _upsample("sevenths", 1, 1, 1, 11 / 7),
    _upsample("volume", 1, 1, 1.5, 2, 2.5),
]
_FIRST_RESIZE = [
    case("enlarged", "Resize", _PICTURE, weights=[np.array([1, 1, 1.5, 2.3], "float32")]),
    # ONNX Runtime takes the next pixel where it shrinks.
    case("shrunk", "Resize", _PICTURE, weights=[np.array([1, 1, 0.6, 0.7], "float32")]),
]

_LAST_RESIZE = [
    case("sevenths", "Resize", _PICTURE, weights=[None, np.array([1, 1, 1, 11 / 7], "float32")]),
    *(
        case(
            *(f"{mode}_{len(sizes)}", "Resize", draw(*(1, 2, 3, 4, 7)[: len(sizes)])),
            weights=[None, None, np.array(sizes)],
            mode="linear",
            coordinate_transformation_mode=mode,
        )
        for mode in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
        for sizes in ((1, 2, 5), (1, 2, 2, 4, 11))
    ),
]

_LIMIT = 2**63 - 1


def _first_slice(start: int, end: int, axis: int) -> Case:
    name = f"slice_{start}_{end}_{axis}"
    return case(name, "Slice", draw(2, 6, 4), starts=[start], ends=[end], axes=[axis])


_FIRST_FORMS = [
    *(
        _first_slice(*each)
        for each in ((2, _LIMIT, 2), (2, _LIMIT, -1), (-_LIMIT - 1, 2, 1), (-2, _LIMIT, 1))
    ),
    case("concat", "Concat", draw(2, 3), draw(2, 3, seed=1), axis=-1),
    case("argmax", "ArgMax", draw(2, 3), axis=-1),
    case("norm", "LpNormalization", draw(2, 3), axis=-1),
    case("squeeze", "Squeeze", draw(1, 3, 1), axes=[-1]),
    case(
        *("batch_norm", "BatchNormalization", draw(2, 3, 4, 4)),
        weights=[draw(3, 4, 4, seed=seed) ** 2 + 1 for seed in range(4)],
        spatial=0,
    ),
    case("mask", "Dropout", draw(2, 3), n_outputs=2),
]
_STEPS = [
    case(
        *(f"step_{start}_{step}", "Slice", draw(2, 6, 4)),
        weights=[np.array([each]) for each in (start, end, 1, step)],
    )
    for start, end, step in ((0, _LIMIT, _LIMIT), (-1, -_LIMIT - 1, -_LIMIT - 1))
]

_REGIONS = np.array([[1, 2, 20, 15], [0, 0, 5, 9], [-3, 4, 40, 40], [5, 5, 5, 5]], "float32")


def _regions(name: str, **attributes: Any) -> Case:
    batches = np.array([0, 1, 0, 1])
    inputs = (draw(2, 3, 12, 14), _REGIONS, batches)
    return case(name, "RoiAlign", *inputs, output_height=3, output_width=2, **attributes)


_OLD_REGIONS = [
    _regions("average", spatial_scale=0.5, sampling_ratio=2),
    _regions("largest", spatial_scale=0.5, sampling_ratio=2, mode="max"),
]
_NEW_REGIONS = [
    _regions("adaptive", spatial_scale=0.5),
    _regions("largest", spatial_scale=0.5, mode="max"),
    _regions("unaligned", spatial_scale=0.5, coordinate_transformation_mode="output_half_pixel"),
]


def _transposed(name: str, **attributes: Any) -> Case:
    weight = draw(2, 3, 3, 3, seed=1)
    return case(name, "ConvTranspose", _PICTURE, weights=[weight], strides=[2, 2], **attributes)


_PADDED = [
    _transposed("shape", output_shape=[10, 14]),
    _transposed("odd_shape", output_shape=[11, 15], output_padding=[1, 1]),
    _transposed("upper_shape", output_shape=[10, 14], auto_pad="SAME_UPPER"),
    _transposed("lower_shape", output_shape=[10, 14], auto_pad="SAME_LOWER"),
    _transposed("upper", auto_pad="SAME_UPPER", output_padding=[1, 1]),
    _transposed("lower", auto_pad="SAME_LOWER"),
    *(
        case(
            *(f"{op}_{mode}_{data.shape[2]}_{size}", op, data),
            auto_pad=mode,
            kernel_shape=[size] * 2,
            strides=[2, 2],
        )
        for mode, data, size in (("SAME_LOWER", _ODD, 2), ("SAME_UPPER", _EVEN, 3))
        for op in ("MaxPool", "AveragePool", "LpPool")
    ),
    *(
        case(
            *(f"conv_{mode}_{data.shape[2]}_{size}", "Conv", data),
            weights=[draw(4, 2, size, size)],
            auto_pad=mode,
            strides=[2, 2],
        )
        for mode, data, size in (("SAME_LOWER", _EVEN, 3), ("SAME_UPPER", _ODD, 2))
    ),
    *(
        case(
            *(f"ceil_{op}_{size}_{stride}", op, _EVEN),
            ceil_mode=1,
            kernel_shape=[size] * 2,
            strides=[stride] * 2,
            pads=[1] * 4,
        )
        for op, size, stride in (("MaxPool", 2, 3), ("AveragePool", 3, 2), ("LpPool", 3, 2))
    ),
]

_TOKENS = draw(2, 3, 4, 5)
_NORMALISED = [
    case("both", "LayerNormalization", _TOKENS, weights=[draw(5), draw(5, seed=1)], n_outputs=3),
    case("mean", "LayerNormalization", _TOKENS, weights=[draw(4, 5)], n_outputs=2, axis=2),
    case("channels", "MeanVarianceNormalization", _TOKENS + 1000, tolerance=1e-4),
    case("batch", "MeanVarianceNormalization", _TOKENS, axes=[0, 1]),
]

_INFINITE = np.array(
    [[-np.inf] * 3, [np.inf, 1, -np.inf], [np.inf] * 3, [-np.inf, 2, 90], [100, -100, 99]],
    "float32",
).reshape(1, 5, 3)
_OLD_SUMS = [
    case("rows", "ReduceLogSumExp", _INFINITE, axes=[-1]),
    case("columns", "ReduceLogSumExp", _INFINITE[:, 3:], axes=[0, 1], keepdims=0),
    case("all", "ReduceLogSumExp", _INFINITE[:, 3:], keepdims=0),
]
_SUMS = [
    case("rows", "ReduceLogSumExp", _INFINITE, weights=[np.array([2])], keepdims=0),
    case("columns", "ReduceLogSumExp", _INFINITE[:, 3:], weights=[np.array([1, -3])]),
    case("lowest", "ReduceLogSumExp", _INFINITE[:, :1], keepdims=0),
    case("all", "ReduceLogSumExp", _INFINITE[:, 3:], weights=[np.array([], "int64")]),
    case("none", "ReduceLogSumExp", _INFINITE, noop_with_empty_axes=1),
]


def _scatter(axis: int, lengths: tuple[int, ...], reduction: str = "none") -> Case:
    """Return a scatter to a part of a tensor; half of the indices count from the end.

    Indices are distinct along the axis, in pairs equal where updates are reduced.
    """
    data = draw(4, 5, 6, 3)
    size = data.shape[axis]
    order = np.argsort(draw(*data.shape, seed=1), axis)[tuple(map(slice, lengths))]
    places = order if reduction == "none" else order // 2
    places = np.where(order % 2, places, places - size)
    inputs = (data, places, draw(*lengths, seed=2))
    name = "_".join(map(str, (reduction, axis % data.ndim, *lengths)))
    return case(name, "ScatterElements", *inputs, axis=axis, reduction=reduction)


_SCATTERS = [
    _scatter(0, (3, 5, 4, 3)),
    _scatter(1, (2, 5, 3, 3)),
    _scatter(-1, (3, 2, 4, 2)),
    _scatter(1, (4, 5, 3, 2), "add"),
    _scatter(2, (3, 4, 5, 2), "mul"),
    _scatter(3, (2, 5, 5, 3), "min"),
]

_GRID = np.arange(12.0).reshape(3, 4)
_CROPS = [
    case(
        *(f"pad_{mode}_{dtype}", "Pad", _GRID.astype(dtype)),
        weights=[np.array([-1, 1, 0, -1])],
        mode=mode,
    )
    for mode in ("reflect", "wrap", "edge", "constant")
    for dtype in ("float32", "int64")
] + [
    case(f"crop_{axis}", "CenterCropPad", draw(4, 5), weights=[np.array([7, 3])], axes=[axis, 0])
    for axis in (1, -1)
]
_CONSTANTS = [
    case("eye", "EyeLike", draw(3, 4), k=-1, dtype=TensorProto.INT32),
    case("eye_of_floats", "EyeLike", draw(3, 4), k=5),
    *(
        case(f"compress_{axis}", "Compress", draw(3, 3), weights=[[True, False, True]], axis=axis)
        for axis in (0, -1)
    ),
    case("compress_all", "Compress", draw(3, 3), weights=[[False, True, False, False, True]]),
    *(
        case(
            *(f"grid_{is_aligned}_{'_'.join(map(str, sizes))}", "AffineGrid"),
            draw(2, len(sizes) - 2, len(sizes) - 1),
            weights=[np.array(sizes)],
            align_corners=is_aligned,
        )
        for is_aligned in (0, 1)
        for sizes in ((2, 1, 3, 2), (2, 1, 2, 3, 4))
    ),
]

_FAMILIES = [
    Family("first_forms", _FIRST_FORMS, 8),
    Family("steps", _STEPS, 13),
    Family("mask", [case("mask", "Dropout", draw(2, 3), n_outputs=2)], 10),
    *(Family("upsample", _OLD_UPSAMPLE, 8), Family("upsample", _UPSAMPLE, 9)),
    *(Family("resize", _FIRST_RESIZE, 10), Family("resize", _LAST_RESIZE, 18)),
    *(Family("regions", _OLD_REGIONS, 10), Family("regions", _NEW_REGIONS, 16)),
    *(Family("padded", _PADDED, 19), Family("normalised", _NORMALISED, 17)),
    *(Family("sums", _OLD_SUMS, 13), Family("sums", _SUMS, 18)),
    *(Family("scatters", _SCATTERS, 18), Family("crops", _CROPS, 19)),
    Family("constants", _CONSTANTS, 20),
]


@pytest.mark.parametrize("sizes", [(12,), (12, 10, 8)])
def test_lines_and_volumes_are_resized_channels_last(
    target: TargetInfo, sizes: tuple[int, ...]
) -> None:
    """The transposes are those at the edges of the network."""
    n_axes = len(sizes)
    weights = {
        "a": draw(16, 8, *[3] * n_axes),
        "b": draw(16, 16, *[3] * n_axes, seed=1),
        "sizes": np.array([1, 16, *sizes]),
    }
    nodes = [
        helper.make_node("Conv", ["data", "a"], ["small"]),
        helper.make_node("Resize", ["small", "", "", "sizes"], ["large"], mode="linear"),
        helper.make_node("Conv", ["large", "b"], ["y"]),
    ]
    inner = Case("inner", nodes, {"data": draw(1, 8, *[8] * n_axes)}, weights)
    proto, _, _ = combine([inner], 18)

    names = names_of(proto, target.spec)

    assert [name.partition("[")[0] for name in (names[0], names[-1])] == ["transpose"] * 2
    assert not [name for name in names[1:-1] if name.startswith("transpose[")]


@pytest.mark.parametrize(
    ("family", "each"),
    [
        pytest.param(family, each, id=f"{family.name}{family.opset}-{each.name}")
        for family in _FAMILIES
        for each in family.cases
    ],
)
def test_outputs_agree(target: TargetInfo, family: Family, each: Case) -> None:
    """All outputs of a case have the shape and the values of ONNX Runtime's."""
    family.check(each, target.spec)


_ARITHMETIC = {
    "Add": np.add,
    "Div": np.divide,
    "Mul": np.multiply,
    "Pow": np.power,
    "Sub": np.subtract,
}


def test_old_operands_lie_along_an_axis(target: TargetInfo) -> None:
    """Before version 7, which ONNX Runtime does not run, the second operand begins at an axis."""
    data, cases = np.abs(_TOKENS) + 0.5, list[Case]()
    expected: list[Array] = []
    for axis, shape, is_constant in (
        *((0, (2, 3), False), (1, (3,), True)),
        *((-3, (3, 4), True), (2, (4, 5), False)),
    ):
        other = np.abs(draw(*shape, seed=1)) + 0.5
        nodes = [
            helper.make_node(op, ["data", "other"], [op], axis=axis, broadcast=1)
            for op in _ARITHMETIC
        ]
        inputs = {"data": data} if is_constant else {"data": data, "other": other}
        weights = {"other": other} if is_constant else {}
        cases.append(Case(f"axis{len(cases)}", nodes, inputs, weights))
        aligned = other.reshape(*shape, *[1] * (4 - axis % 4 - len(shape)))
        expected += [compute(data, aligned) for compute in _ARITHMETIC.values()]
    proto, feeds, _ = combine(cases, 6, expected)

    actual = run_lowered(proto, feeds, target.spec)

    for array, each in zip(actual, expected, strict=True):
        np.testing.assert_allclose(array, each, rtol=1e-5)


def test_the_normalisation_of_a_constant_channel_is_finite(target: TargetInfo) -> None:
    """Its deviation is zero, to which ONNX adds a number; ONNX Runtime returns NaN."""
    data = _TOKENS.copy()
    data[:, 1] = 3.3
    node = helper.make_node("MeanVarianceNormalization", ["data"], ["y"])
    proto = model([node], {"data": data}, {"y": data.shape})

    (actual,) = run_lowered(proto, {"data": data}, target.spec)

    (expected,) = ReferenceEvaluator(proto).run(None, {"data": data})
    # Rounding of the mean, divided by a deviation of the same size, is below one.
    np.testing.assert_allclose(actual[:, [0, 2]], expected[:, [0, 2]], atol=1e-5)
    assert np.isfinite(actual).all()
