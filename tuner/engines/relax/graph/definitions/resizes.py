"""Linear interpolation of images, which takes nothing from an element of weight 0.

TVM multiplies such an element by 0, which makes an infinite one NaN; ONNX Runtime does so but for
the last element of an axis.
"""

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx
from tvm.topi.image.resize import get_inx

_AXES = "DHW"


def legalise_resize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Define a linear resize; TVM defines the others."""
    attrs, shape = call.attrs, call.ty.shape
    layout, how = str(attrs.layout), str(attrs.coordinate_transformation_mode)
    if str(attrs.method) != "linear" or not set(layout) <= {"N", "C", *_AXES}:
        return call.op.get_attr("FLegalize")(builder, call)
    axes = [layout.index(name) for name in _AXES if name in layout]
    return builder.call_te(
        lambda x: _linear(x, list(shape), axes, how),
        call.args[0],
        primfunc_name_hint=str(call.op.name).rpartition(".")[2],
    )


def _linear(x: te.Tensor, shape: list[Any], axes: list[int], how: str) -> te.Tensor:
    wide = "float64" if str(x.dtype) == "float64" else "float32"

    def sample(place: list[Any], left: list[int]) -> Any:
        if not left:
            return x(*place).astype(wide)
        axis, *others = left
        n_in, n_out = (int(size) for size in (x.shape[axis], shape[axis]))
        if n_in == n_out:
            return sample(place, others)
        low, high, share = _between(place[axis], n_in, n_out, how)
        a, b = (sample([*place[:axis], each, *place[axis + 1 :]], others) for each in (low, high))
        return a * (1 - share).astype(wide) + b * share.astype(wide)

    return te.compute(shape, lambda *i: sample([*i], axes).astype(x.dtype), "resize")


def _between(i: Any, n_in: int, n_out: int, how: str) -> tuple[Any, Any, Any]:
    """Return the elements on both sides of an output, and the share of the second one."""
    position = get_inx(i, *(tirx.IntImm("int32", n) for n in (n_in, n_out)), how)
    low, high = (
        te.max(te.min(end(position).astype("int32"), n_in - 1), 0) for end in (te.floor, te.ceil)
    )
    # At a whole position both are the same element, to which this part of it adds nothing.
    return low, high, te.max(position - te.floor(position), tirx.const(1e-30, "float32"))


RESIZES: dict[str, Callable[..., relax.Expr]] = {
    f"relax.image.resize{n}d": legalise_resize for n in (2, 3)
}
