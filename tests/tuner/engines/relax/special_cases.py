"""Cases of operators at NaN, infinities, zeros, and the limits of types.

What ONNX Runtime computes is expected where it does not lose NaN, nor start maxima at the lowest
finite number; NumPy's results are expected elsewhere.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper

from tests.tuner.engines.relax.operator_cases import Case, case
from tests.tuner.networks.models import Array

_NAN, _INF = np.nan, np.inf
_LOWEST = float(np.finfo("float32").min)


def _floats(*values: Any, dtype: str = "float32") -> Array:
    return np.array(values, dtype)


NUMBERS = _floats(
    *(_NAN, _INF, -_INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, -0.5, 1.5, 100.0, -100.0),
    *(3e38, -3e38, 1e-40, 5.9, 7.0, -3.0, 3.0, 255.5),
)
_LEFT, _RIGHT = (grid.reshape(-1) for grid in np.meshgrid(NUMBERS[:12], NUMBERS[:12]))
ROWS = _floats(
    *([-_INF] * 6, [_INF] * 6, [_LOWEST] * 6, [_NAN] * 6),
    *([_NAN, 1, 2, 3, -_INF, _INF], [1, 2, _NAN, _INF, 3, _NAN], [-1, -2, -3, -4, -5, _NAN]),
    *([-_INF, -_INF, 1, -_INF, -_INF, 0], [1] * 6, [0, -0.0, 0, -0.0, 0, 0]),
    *([-_INF, 3, _INF, 2, _INF, 0], [_LOWEST, -_INF, _LOWEST, -_INF, _LOWEST, _LOWEST]),
)
# Rows in which ONNX Runtime's own results do not depend on the place of NaN.
_SURE = ROWS[[0, 1, 2, 7, 8, 9, 10, 11]]
_IMAGE = np.stack([ROWS, np.roll(ROWS, 1, axis=0)], 1).reshape(1, 4, 6, 6)

_UNARY: dict[str, dict[str, Any]] = {
    **{"Relu": {}, "Sign": {}, "Elu": {"alpha": 1.5}, "Selu": {}, "Celu": {"alpha": 2.0}},
    **{"LeakyRelu": {}, "ThresholdedRelu": {}, "HardSigmoid": {}, "HardSwish": {}, "Softsign": {}},
    **{"Softplus": {}, "Shrink": {"bias": 0.1}, "Round": {}, "Floor": {}, "Ceil": {}, "Erf": {}},
    **{"Tanh": {}, "Sigmoid": {}, "Sqrt": {}, "Log": {}, "Exp": {}, "IsNaN": {}, "IsInf": {}},
    **{"Abs": {}, "Neg": {}, "Reciprocal": {}, "Mish": {}, "Atan": {}, "Asin": {}, "Acosh": {}},
}
_BINARY = ("Max", "Min", "Div", "Pow", "Mul", "Equal", "Less", "LessOrEqual", "PRelu")
_INTEGERS = ("uint8", "int8", "int64")


def _limits(dtype: str) -> Array:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array([[low] * 5, [high] * 5, [0] * 5, [low, high, 0, high, low]], dtype)


def _constant(value: float) -> Array:
    return np.array(value, "float32")


def _reductions() -> list[Case]:
    operators = ("Max", "Min", "Sum", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp")
    none = np.array([], "int64")
    cases = [
        *(
            case(name, name, _SURE, weights=[np.array([1])])
            for name in (*(f"Reduce{each}" for each in operators), "ReduceSumSquare")
        ),
        *(
            case(f"{name}_of_none", name, NUMBERS[1:13], weights=[none], noop_with_empty_axes=1)
            for name in ("ReduceL2", "ReduceLogSumExp")
        ),
    ]
    for name in ("ReduceMax", "ReduceMin"):
        cases += [case(f"{name}_{d}", name, _limits(d), weights=[np.array([1])]) for d in _INTEGERS]
        truths = np.array([[0, 0, 0], [0, 1, 0], [1, 1, 1]], "bool")
        cases.append(case(f"{name}_bool", name, truths, weights=[np.array([1])], keepdims=0))
        cases.append(case(f"{name}_of_all", name, truths[1:]))
    whole = np.array([[-3, -4, 2, 1, 0], [2**20, 7, 7, 7, -9], [2**30] * 5], "int32")
    for name in ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
        cases += [
            case(f"{name}_{each.dtype}", name, each, weights=[np.array([1])], keepdims=0)
            for each in (whole, whole.astype("int64"))
        ]
    for name in ("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare", "ReduceMean"):
        cases += [
            case(f"{name}_beyond_{d}", name, _overflowing(d), weights=[np.array([1])], keepdims=0)
            for d in ("int32", "int64")
        ]
    return cases


def _overflowing(dtype: str) -> Array:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array([[high, 1, 5], [low, -1, -9999], [low, -1, -5], [1, -2, 3]], dtype)


def _positions() -> list[Case]:
    cases = []
    for name in ("ArgMax", "ArgMin"):
        for last in (0, 1):
            options: dict[str, Any] = {"axis": 1, "keepdims": 1 - last, "select_last_index": last}
            cases.append(case(f"{name}_{last}", name, _SURE, **options))
            cases += [case(f"{name}_{d}_{last}", name, _limits(d), **options) for d in _INTEGERS]
    return [*cases, case("Hardmax", "Hardmax", _SURE, axis=1)]


def _transposed() -> list[Case]:
    """Return transposed convolutions with one output more than their windows reach, or fewer."""
    rng = np.random.default_rng(0)
    cases = []
    for n_axes in (1, 2):
        data = rng.integers(-3, 4, (1, 2, *[4] * n_axes)).astype("float32")
        kernel = rng.integers(-3, 4, (2, 3, *[3] * n_axes)).astype("float32")
        weights = [kernel, np.ones(3, "float32")]
        for mode in ("NOTSET", "SAME_UPPER", "SAME_LOWER"):
            for size in (8, 10):
                options: dict[str, Any] = {"auto_pad": mode, "output_shape": [size, 9, 10][:n_axes]}
                name = f"Transposed_{n_axes}_{mode}_{size}"
                strides = [2] * n_axes
                made = case(
                    name, "ConvTranspose", data, weights=weights, strides=strides, **options
                )
                cases.append(made)
    return cases


def _sequences() -> Case:
    """Return changes of a sequence of three at positions from both ends, and its lengths."""
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["three"], axis=0),
        helper.make_node("SequenceInsert", ["three", "new", "last"], ["four"]),
        helper.make_node("SequenceErase", ["four", "first"], ["others"]),
        helper.make_node("SequenceErase", ["others"], ["two"]),
        helper.make_node("SequenceInsert", ["two", "new"], ["ends"]),
        helper.make_node("SequenceAt", ["three", "last"], ["end"]),
        helper.make_node("SequenceLength", ["three"], ["length"]),
        helper.make_node("ConcatFromSequence", ["four"], ["rows"], axis=0),
        helper.make_node("ConcatFromSequence", ["ends"], ["rest"], axis=1),
    ]
    positions = {"first": np.array(0), "last": np.array(-1)}
    return Case("Sequences", nodes, {"x": ROWS[6:9], "new": ROWS[:1]}, positions)


def _samples() -> list[Case]:
    """Return images that are sampled inside, outside, and where there is no place."""
    ends = _floats(_NAN, _INF, -_INF, 1e30, -1e30, 0.3, 600001.0)
    grid = np.stack(np.meshgrid(ends, ends), -1)[None]
    image = np.arange(40, dtype="float32").reshape(1, 2, 4, 5) ** 2
    return [
        case(
            f"GridSample_{mode}_{padding}_{aligned}",
            *("GridSample", image, grid),
            mode=mode,
            padding_mode=padding,
            align_corners=aligned,
        )
        for mode in ("linear", "nearest", "cubic")
        for padding, aligned in (("zeros", 0), ("border", 1), ("reflection", 0))
    ]


def _others() -> list[Case]:
    sizes: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    types = {name: helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in _INTEGERS}
    types |= {"bool": helper.np_dtype_to_tensor_dtype(np.dtype("bool"))}
    return [
        *(case(f"Softmax_{axis}", "Softmax", ROWS, axis=axis) for axis in (0, 1)),
        *(case(f"LogSoftmax_{axis}", "LogSoftmax", ROWS, axis=axis) for axis in (0, 1)),
        *(case(f"Sign_{d}", "Sign", _limits(d)) for d in ("uint8", "uint64")),
        case("IsInf_above", "IsInf", NUMBERS, detect_negative=0),
        case("Mod", "Mod", _LEFT, _RIGHT, fmod=1),
        case("Clip", "Clip", NUMBERS, weights=[_constant(-2), _constant(2)]),
        case("Clip_at_zero", "Clip", NUMBERS, weights=[_constant(0), _constant(6)]),
        case("Clip_crossed", "Clip", NUMBERS, weights=[_constant(2), _constant(-2)]),
        case("Clip_computed", "Clip", NUMBERS, _constant(-2), _constant(2)),
        *(
            case(f"{name}_below", name, _floats(-5, -12.3, -16, -40))
            for name in ("Softplus", "Mish")
        ),
        case("LpPool", "LpPool", _IMAGE, **sizes),
        _sequences(),
        *_samples(),
        case("CumSum", "CumSum", ROWS, weights=[np.array(1)]),
        case("TopK", "TopK", _SURE, weights=[np.array([3])], n_outputs=2),
        case("Divided_by_0", "Div", NUMBERS, weights=[_constant(0)]),
        *(
            case(f"Cast_{name}", "Cast", NUMBERS, to=to)
            for name, to in types.items()
            if name != "int8"
        ),
        *(
            case(
                f"Quantised_{d}",
                "QuantizeLinear",
                NUMBERS,
                weights=[_constant(0.1), np.array(3, d)],
            )
            for d in ("uint8", "int8")
        ),
        *(
            case(f"Quantised_by_{scale}", "QuantizeLinear", NUMBERS, weights=[_constant(scale)])
            for scale in (0.0, -0.0)
        ),
        *(
            case(f"{name}_{d}", name, NUMBERS[:16].clip(-6e4, 6e4).astype(d))
            for name in ("Relu", "Exp", "Tanh")
            for d in ("float16", "float64")
        ),
    ]


#: Cases in which ONNX Runtime is right.
SPECIAL = [
    *(case(name, name, NUMBERS, **attributes) for name, attributes in _UNARY.items()),
    *(case(name, name, _LEFT, _RIGHT) for name in _BINARY),
    *_reductions(),
    *_positions(),
    *_others(),
    *_transposed(),
]


def _windows(image: Array, size: int, step: int, pad: int) -> Array:
    padded = np.pad(image, [(0, 0), (0, 0), (pad, pad), (pad, pad)], constant_values=-_INF)
    view = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))
    return np.asarray(view[:, :, ::step, ::step].max((4, 5)))


def _sorted(rows: Array, *, largest: bool) -> list[Array]:
    keys = np.where(np.isnan(rows), _INF, rows)
    # NaN comes after infinity, and equal numbers in their order.
    order = np.lexsort((np.isnan(rows) * 1.0, keys))[:, :3]
    if largest:
        order = np.lexsort((-(np.isnan(rows) * 1.0), -keys))[:, :3]
    return [np.take_along_axis(rows, order, 1), order]


_SCATTERED = np.stack([ROWS[:, 5], ROWS[:, 2]], 1)


def _scatter(name: str) -> Case:
    weights = [np.zeros((len(ROWS), 2), "int64"), _SCATTERED]
    return case(f"Scatter_{name}", "ScatterElements", ROWS, weights=weights, axis=1, reduction=name)


def _scattered(choose: Callable[..., Array]) -> Array:
    first = choose(choose(ROWS[:, 0], _SCATTERED[:, 0]), _SCATTERED[:, 1])
    return np.concatenate([first[:, None], ROWS[:, 1:]], 1)


_LINE = _floats(-_INF, 1, 2, _INF).reshape(1, 1, 4)
_DOUBLED = np.concatenate([_floats(-_INF, -_INF, 1, 1.5, 2), [_INF] * 3]).astype("float32")
_HALVES = _floats(*[-_INF] * 3, 1.25, 1.75, *[_INF] * 3)


def _resized(name: str, data: Array, expected: Array, *scales: float, how: str) -> Any:
    """Return a linear resize in which no infinite element of weight 0 becomes NaN."""
    options: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": how}
    weights = [None, np.array(scales, "float32")]
    return case(f"Resize_{name}_{how}", "Resize", data, weights=weights, **options), [expected]


def _resizes() -> list[Any]:
    resizes = []
    for how, line in (("asymmetric", _DOUBLED), ("half_pixel", _HALVES)):
        row = line.reshape(1, 1, 8)
        resizes += [
            _resized("line", _LINE, row, 1, 1, 2, how=how),
            _resized("image", _LINE[None], row[None].repeat(2, 2), 1, 1, 2, 2, how=how),
            _resized("volume", _LINE[None, None], row[None, None], 1, 1, 1, 1, 2, how=how),
            _resized("channels", _LINE.reshape(1, 4, 1), row.reshape(1, 8, 1), 1, 2, 1, how=how),
        ]
    return resizes


_POOL: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}

#: Cases with NumPy's results, because ONNX Runtime loses NaN in them, or minus infinity.
BY_NUMPY: Sequence[tuple[Case, list[Array]]] = [
    (case("Largest", "ReduceMax", ROWS, weights=[np.array([1])]), [ROWS.max(1, keepdims=True)]),
    (case("Least", "ReduceMin", ROWS, weights=[np.array([1])]), [ROWS.min(1, keepdims=True)]),
    (
        case("Largest64", "ReduceMax", ROWS.astype("float64"), weights=[np.array([1])]),
        [ROWS.astype("float64").max(1, keepdims=True)],
    ),
    (case("ArgMax_nan", "ArgMax", ROWS, axis=1), [ROWS.argmax(1)[:, None]]),
    (case("ArgMin_nan", "ArgMin", ROWS, axis=0), [ROWS.argmin(0)[None]]),
    (case("MaxPool", "MaxPool", _IMAGE, **_POOL), [_windows(_IMAGE, 3, 2, 1)]),
    (case("MaxPool_2", "MaxPool", _IMAGE, kernel_shape=[2, 2]), [_windows(_IMAGE, 2, 1, 0)]),
    (case("GlobalMaxPool", "GlobalMaxPool", _IMAGE), [_IMAGE.max((2, 3), keepdims=True)]),
    (
        case("TopK_nan", "TopK", ROWS, weights=[np.array([3])], n_outputs=2),
        _sorted(ROWS, largest=True),
    ),
    (
        case("TopK_least", "TopK", ROWS, weights=[np.array([3])], n_outputs=2, largest=0),
        _sorted(ROWS, largest=False),
    ),
    *_resizes(),
    (_scatter("max"), [_scattered(np.maximum)]),
    (_scatter("min"), [_scattered(np.minimum)]),
    (case("Clip_low", "Clip", NUMBERS, weights=[_constant(-2)]), [np.maximum(NUMBERS, -2)]),
]
