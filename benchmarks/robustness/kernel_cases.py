"""Kernels of different operators and types, each as an unscheduled function."""

import warnings
from collections.abc import Callable
from typing import Any

with warnings.catch_warnings():
    # TVM prints deprecation warnings when it is imported.
    warnings.simplefilter("ignore")
    import tvm
    from tvm import te, topi

    from tuner.engines.relax import worker  # noqa: F401  before anything imports TVM

Tensors = list[Any]
Definition = tuple[Tensors, Tensors]


def functions() -> dict[str, Callable[[], Any]]:
    """Return the kernels by name; a call creates the function."""
    made: dict[str, Callable[[], Definition]] = {
        "conv2d_relu float32": lambda: _convolution("float32"),
        "conv2d_relu bfloat16": lambda: _convolution("bfloat16"),
        "conv2d float16 4608 terms": _long_convolution,
        "depthwise float32": lambda: _depthwise("float32"),
        "depthwise float16": lambda: _depthwise("float16"),
        "grouped float32": _grouped,
        "matmul float32": lambda: _matmul("float32", "float32"),
        "matmul float16": lambda: _matmul("float16", "float16"),
        "matmul float16 float32 sum": lambda: _matmul("float16", "float32"),
        "matmul bfloat16": lambda: _matmul("bfloat16", "bfloat16"),
        "dense uint8 int8": lambda: _dense("uint8", "int8"),
        "dense int8": lambda: _dense("int8", "int8"),
        "add int32": lambda: _binary(topi.add, "int32"),
        "add uint8": lambda: _binary(topi.add, "uint8"),
        "where bool": _where,
        "softmax float32": lambda: _unary(topi.nn.softmax, "float32"),
        "softmax float16": lambda: _unary(topi.nn.softmax, "float16"),
        "layer_norm float32": _layer_norm,
        "max_pool float32": lambda: _pool("max", "float32"),
        "avg_pool float32": lambda: _pool("avg", "float32"),
        "global mean float32": lambda: _unary(lambda x: topi.sum(x, axis=1) / 1000.0, "float32"),
        "max bfloat16": lambda: _unary(lambda x: topi.max(x, axis=1), "bfloat16"),
        "max of tanh float32": lambda: _unary(lambda x: topi.max(topi.tanh(x), axis=1), "float32"),
        "argmax float32": lambda: _unary(lambda x: topi.argmax(x, axis=1), "float32"),
        "split float32": lambda: _split("float32"),
        "split float16": lambda: _split("float16"),
        "take float32": _take,
        "concatenate float32": _concatenate,
        "resize float32": _resize,
        "sigmoid float32": lambda: _unary(lambda x: x * topi.sigmoid(x), "float32"),
        "log_sum float32": lambda: _unary(lambda x: topi.sum(topi.log(x), axis=1), "float32"),
        "transpose int64": lambda: _unary(topi.transpose, "int64"),
    }
    return {name: _as_function(definition) for name, definition in made.items()}


def _as_function(definition: Callable[[], Definition]) -> Callable[[], Any]:
    def create() -> Any:
        inputs, outputs = definition()
        return te.create_prim_func([*inputs, *outputs])

    return create


def _x(shape: tuple[int, ...], dtype: str, name: str = "x") -> Any:
    return te.placeholder(shape, dtype, name)


def _convolution(dtype: str) -> Definition:
    x, w, b = (
        _x((1, 14, 14, 32), dtype),
        _x((3, 3, 32, 48), dtype, "w"),
        _x((48,), "float32", "b"),
    )
    return [x, w, b], [topi.nn.relu(topi.nn.conv2d_nhwc(x, w, 1, 1, 1) + b)]


def _long_convolution() -> Definition:
    x, w = _x((1, 4, 4, 512), "float16"), _x((3, 3, 512, 64), "float16", "w")
    return [x, w], [topi.nn.conv2d_nhwc(x, w, 1, 1, 1, out_dtype="float16")]


def _depthwise(dtype: str) -> Definition:
    x, w = _x((1, 14, 14, 64), dtype), _x((3, 3, 64, 1), dtype, "w")
    return [x, w], [topi.nn.depthwise_conv2d_nhwc(x, w, 1, 1, 1)]


def _grouped() -> Definition:
    x, w = _x((1, 32, 10, 10), "float32"), _x((64, 8, 3, 3), "float32", "w")
    return [x, w], [topi.nn.group_conv2d_nchw(x, w, 1, 1, 1, 4)]


def _matmul(dtype: str, sum_dtype: str) -> Definition:
    a, b = _x((64, 768), dtype), _x((768, 96), dtype, "w")
    k = te.reduce_axis((0, 768), "k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(a[i, k].astype(sum_dtype) * b[k, j].astype(sum_dtype), axis=k)

    return [a, b], [te.compute((64, 96), element, name="matmul")]


def _dense(a_dtype: str, b_dtype: str) -> Definition:
    a, b = _x((64, 256), a_dtype), _x((96, 256), b_dtype, "w")
    k = te.reduce_axis((0, 256), "k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(a[i, k].astype("int32") * b[j, k].astype("int32"), axis=k)

    return [a, b], [te.compute((64, 96), element, name="dense")]


def _binary(operator: Callable[[Any, Any], Any], dtype: str) -> Definition:
    a, b = _x((64, 100), dtype), _x((64, 100), dtype, "b")
    return [a, b], [operator(a, b)]


def _unary(operator: Callable[[Any], Any], dtype: str) -> Definition:
    x = _x((64, 1000), dtype)
    return [x], [operator(x)]


def _where() -> Definition:
    condition, x = _x((64, 100), "bool", "condition"), _x((64, 100), "float32")
    return [condition, x], [topi.where(condition, x, topi.negative(x))]


def _layer_norm() -> Definition:
    x, scale, shift = (
        _x((64, 256), "float32"),
        _x((256,), "float32", "s"),
        _x((256,), "float32", "b"),
    )
    return [x, scale, shift], [topi.nn.layer_norm(x, scale, shift, [1])]


def _pool(kind: str, dtype: str) -> Definition:
    x = _x((1, 17, 17, 32), dtype)
    pooled = topi.nn.pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], kind, layout="NHWC")
    return [x], [pooled]


def _split(dtype: str) -> Definition:
    x = _x((32, 96), dtype)
    return [x], list(topi.split(x, 3, 1))


def _take() -> Definition:
    x, indices = _x((50, 64), "float32"), _x((40,), "int64", "indices")
    return [x, indices], [topi.take(x, indices, 0, mode="clip")]


def _concatenate() -> Definition:
    a, b = _x((32, 48), "float32"), _x((32, 80), "float32", "b")
    return [a, b], [topi.concatenate([a, b], 1)]


def _resize() -> Definition:
    x = _x((1, 12, 12, 16), "float32")
    resized = topi.image.resize2d(
        x,
        [0.0] * 4,
        [20, 18],
        layout="NHWC",
        method="linear",
        coordinate_transformation_mode="half_pixel",
    )
    return [x], [resized]


def parse(text: str) -> Any:
    """Parse TVMScript of a function."""
    return tvm.script.from_source(text)
