"""Programs of torch keep their results, by way of ONNX where TVM's importer fails."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tests.tuner.engines.relax.frontend.torch_programs import (
    Functions,
    check_groups,
    save_program,
)
from tuner.engines.relax.frontend import torch_program
from tuner.engines.relax.graph.pipeline import import_model, lower
from tuner.engines.relax.target.targets import describe_target, make_target
from tuner.errors import ModelError

_COUNTS = torch.tensor([2, 0, 3])
_PLACES = torch.tensor([3, 1]).expand(3, 5, 2).clone()
# Reductions of the first axis of (0, 4), which have no elements to reduce.
_OF_NOTHING: Functions = {
    **{
        name: lambda x, name=name: getattr(torch, name)(x[:0], 0)
        for name in ("mean", "sum", "prod", "var", "std", "var_mean", "nanmean", "logsumexp")
    },
    "truths": lambda x: ((x[:0] > 0).all(0), x[:0].any(0), (x[:0] > 0).all(), x[:0].any()),
    "all elements": lambda x: (
        x[:, :0].mean(),
        x[:, :0].sum() + x,
        functional.mse_loss(x[:0], x[:0]),
    ),
    "products": lambda x: (x[:, :0] @ x[:0], torch.einsum("ij,jk->ik", x[:, :0], x[:0])),
}
_INF, _NAN = float("inf"), float("nan")
_NUMBERS = torch.rand(3, 7, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
_WHOLE = torch.arange(-4, 8).reshape(3, 4)
_SPECIAL = torch.tensor(
    [[1.0, 2.0, 110.0, 1e4], [-_INF, -_INF, -_INF, -_INF], [_NAN, 1.0, 2.0, _INF], [0.0] * 4]
)
_SIZES = torch.tensor([0.0, 1e-30, 1e-8, 0.3, 1.0, 10.0, 50.0, 80.0, 110.0, 1e4, 1e30])
_SIGNED = torch.stack([_SIZES, -_SIZES])


def _checked(x: torch.Tensor) -> torch.Tensor:
    torch._check_tensor_all(x < 2)
    return x + 1


def _reduced(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.prod(), x.prod(1), x.prod(0, keepdim=True), x.sum(), x.sum(1), x.cumsum(0)


# TVM's importer has no windows: a program with them is imported by way of ONNX.
_WINDOWS: Functions = {"windows": lambda x: x.unfold(1, 3, 2)}
# TVM counts rows by the indices of a scatter, which may have fewer of them than the tensor.
_DIRECT: Functions = {
    "operator that TVM does not know": lambda x: torch.aminmax(x, dim=1)[0],
    "own converters in a branch": lambda x: torch.cond(
        x.sum() > 0, lambda x: x[:, -1] + 2, lambda x: x[:, 0] * 2, (x,)
    ),
    "vector of no elements beside matrices": lambda x: torch.cat([torch.empty(0), x, x.flip(1)], 1),
    "number that a check alone reads": _checked,
    "sum of truth values": lambda x: (x > 0).cumsum(1),
    "infinite mask": lambda x: (
        (x + torch.full((7, 4), -torch.inf).tril(-1)).exp(),
        torch.full_like(x, -torch.inf).where(x > 0, x),
    ),
    "elements": lambda x: x.scatter(2, _PLACES, -x[:, :5, :2]),
    "number": lambda x: x.scatter(2, _PLACES, 7.0),
    "order of elements": lambda x: (
        *(*x.cummax(1), *x.cummin(-1), *x.kthvalue(2, 1)),
        *x.mul(4).round().mode(1, keepdim=True),
    ),
    "elements in place of others": lambda x: (
        *(x.masked_scatter(x[..., :1] > 0, x.flip(0) * 2), x.diagonal_scatter(x[0, :3, :4].T)),
        *(x[0, :4].clone().fill_diagonal_(7.0), x.repeat_interleave(_COUNTS, 0, output_size=5)),
        *(x.scatter_reduce(2, _PLACES, x, how, include_self=False) for how in ("mean", "amax")),
        x.scatter_add(2, _PLACES, x[:, :5, :2]),
    ),
    "windows of different sizes": lambda x: functional.adaptive_max_pool2d(
        x, (3, 3), return_indices=True
    ),
    "places among elements in order": lambda x: torch.searchsorted(
        x, x.flip(1), right=True, out_int32=True, sorter=x.argsort(-1)
    ),
    "parts of a range": lambda x: (
        torch.histc(x, 4, -0.5, 0.5),
        x.topk(3, 1, sorted=False)[0].amax(1),
    ),
    "constants, which TVM folds": lambda x: (
        x + torch.zeros(3, 7, 4).scatter(2, _PLACES, torch.ones(3, 5, 2))
    ),
}
_SCALARS: Functions = {
    name: lambda x, name=name, args=args: getattr(x, name)(*args)
    for name, *args in (
        *(("cummax", 0), ("cummin", 0), ("kthvalue", 1), ("mode",), ("median", 0), ("max", 0)),
        *(("sort",), ("topk", 1), ("argmax",), ("cumsum", 0), ("cumprod", 0)),
        *(("logcumsumexp", 0), ("scatter", 0, torch.tensor(0), torch.tensor(2.0))),
        *(("scatter_add", 0, torch.tensor(0), torch.tensor(2.0)), ("gather", 0, torch.tensor(0))),
    )
}
_COMPLEX: Functions = {
    "parts": lambda x: torch.view_as_complex(x.reshape(3, 7, 2, 2)).conj().imag + 0,
}
_BY_ONNX: Functions = {
    **_WINDOWS,
    "distances": lambda x: torch.cdist(x, x.flip(1)),
    "axis between indices, which TVM misreads": lambda x: x[
        torch.tensor([0, 2, 1]), :, torch.tensor([0, 2, 1])
    ],
}
_WHOLE_DIRECT: Functions = {
    "quotients that are rounded down": lambda x: (torch.div(x, 3, rounding_mode="floor"), x // -3),
    "shifts": lambda x: (
        *(x << 2, x >> 1, x >> x.abs(), x.int() << 1),
        *(torch.bitwise_left_shift(x, 2), torch.bitwise_right_shift(x, x.abs())),
    ),
    "shifts by all bits and more, and by fewer than none": lambda x: tuple(
        shift(each, amount)
        for each in (x.to(torch.int8), x.to(torch.uint8), x.int())
        for shift in (torch.bitwise_left_shift, torch.bitwise_right_shift)
        for amount in (7, 8, 40, 100, -1, (x * 9).to(each.dtype))
    ),
    "products and sums of narrow numbers": lambda x: tuple(
        each for dtype in (torch.int32, torch.int8) for each in _reduced((x * 30).to(dtype))
    ),
    "floor division": lambda x: x // 3,
    "mean": lambda x: x.float().mean(),
    "true division": lambda x: x / 3,
    "true division of whole numbers": lambda x: x / (x * x + 1),
    "numbers beyond whole ones": lambda x: (x * 0.5, x + 2.5, x - 1e30, x * -3.4e38, 0.3 * x - 1),
    "truth values": lambda x: ((x > 0) + (x < 2), (x > 0) * (x < 2), (x > 0) * 2, (x > 0) + 0.5),
}
_WHOLE_BY_ONNX: Functions = {
    "powers, which TVM lacks": lambda x: x ** x.flip(0).abs(),
}
# Formulas that must not overflow.
_FORMULAS: Functions = {
    "inverse of the error function": lambda x: torch.erfinv(x.clamp(-1, 1)),
    "logarithm of the gamma function": lambda x: (x.lgamma(), x.digamma()),
    "Bessel function": lambda x: torch.i0(x.double()),
    "signs": lambda x: (x.flip(1).copysign(x), x.copysign(-0.0), x.signbit()),
    "length of a vector": lambda x: torch.hypot(x, x.flip(1)),
    "logsigmoid": functional.logsigmoid,
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(1)),
    "expm1": torch.expm1,
    "log1p": lambda x: torch.log1p(x.abs()),
    "softplus": functional.softplus,
    "sign": torch.sign,
    "isfinite": lambda x: x.isfinite() * x,
}
_FORMULAS_BY_ONNX: Functions = {"logaddexp2": lambda x: torch.logaddexp2(x, x.flip(1))}
# NaN and infinities are where torch has them.
_AT_SPECIAL: Functions = {
    "amax": lambda x: x.amax(0),
    "amin": lambda x: x.amin((0, 1), keepdim=True),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "logcumsumexp of the first axis": lambda x: torch.logcumsumexp(x, 0),
    "clamp": lambda x: x.clamp(-2, 2),
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "argmax": lambda x: x.argmax(1),
    "relu": torch.relu,
    "hardtanh": functional.hardtanh,
    "unequal": lambda x: (x.ne(x), x != 2, x != x.flip(0), x.count_nonzero(1)),
    "places in a row": lambda x: (x.argmax(), x[0].argmin(), x[2].argmax(0)),
    "sorts": lambda x: (
        *x.sort(1),
        *x.sort(dim=1, descending=True, stable=True),
        x.argsort(0),
    ),
    "sign": lambda x: (
        *(torch.sign(x), torch.sgn(-x), torch.angle(x)),
        *(torch.heaviside(x, y) for y in (torch.tensor(0.5), x.flip(1))),
    ),
    "median": lambda x: (
        *x.median(1),
        *x.median(0, keepdim=True),
        x.nan_to_num(0, 9, -9).int().median(1)[0],
        *(x.nanmedian(1, keepdim=True)[0], x.nanmedian()),
    ),
    "quotients that are rounded": lambda x: (
        *(x // y for y in (2.0, 0.0, -3.0, x.flip(0), x.flip(1))),
        *(x % y for y in (2.0, 0.0, -3.0, x.flip(0), x.flip(1))),
        torch.div(x, x.flip(1), rounding_mode="floor"),
        torch.div(x, x.flip(1), rounding_mode="trunc"),
    ),
    "roots": lambda x: (x**0.5, x**-0.5),
    "products with 0, and numbers that equal themselves": lambda x: (
        *(functional.softshrink(x), x * 0, 0.0 * x + 1, torch.where(x.eq(x), x, 0.0)),
        *((e := x.exp()) - e, torch.tensor(0.0) / x.abs()),
    ),
    "bucketize": lambda x: (
        torch.bucketize(x, torch.tensor([0.0, 1.0])),
        torch.bucketize(x, torch.tensor([0.0, 1.0]), right=True),
    ),
    "narrow whole numbers": lambda x: tuple(
        (x * 3e5 - 7).to(dtype) for dtype in (torch.int8, torch.uint8, torch.int16)
    ),
}


def test_programs_are_imported_without_onnx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results and dtypes are those of torch."""
    monkeypatch.delattr(torch_program, "as_onnx")

    check_groups(
        tmp_path,
        *((_DIRECT, _NUMBERS), (_WHOLE_DIRECT, _WHOLE)),
        *((_FORMULAS, _SIGNED), (_AT_SPECIAL, _SPECIAL), (_OF_NOTHING, _SPECIAL)),
        (_SCALARS, torch.tensor(1.5)),
    )
    check_groups(tmp_path, (_COMPLEX, _NUMBERS))


def test_programs_that_tvm_fails_on_are_imported_by_way_of_onnx(tmp_path: Path) -> None:
    """Results and dtypes are those of torch, and an input that is not used remains one."""
    check_groups(
        tmp_path,
        *((_BY_ONNX, _NUMBERS), (_WHOLE_BY_ONNX, _WHOLE)),
        *((_FORMULAS_BY_ONNX, _SIGNED), ({}, torch.ones(2))),
    )


def test_bfloat16_has_kernels_for_gpus(tmp_path: Path) -> None:
    """TVM lacks these operators for it; their kernels compute in float32 without conversions."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        norms = functional.layer_norm(x, (5,)), functional.group_norm(x, 2)
        return *norms, functional.instance_norm(x), x.abs() ** 0.5, x // 2, x.argmax(-1)

    x = torch.ones(1, 4, 3, 5, dtype=torch.bfloat16)
    target = make_target(describe_target("cuda:sm_90").spec, intrinsics=False)

    module = lower(save_program({"y": function}, tmp_path, x), target)

    outputs = module["main"].ret_ty.fields
    assert [str(each.dtype) for each in outputs] == ["bfloat16"] * 5 + ["int64"]


def _ones(x: torch.Tensor) -> torch.Tensor:
    length = x.to(torch.int64).sum().item()
    torch._check(length >= 0)
    torch._check(length < 40)
    return x + torch.ones(length).sum()


def test_a_size_inside_may_depend_on_the_data(tmp_path: Path) -> None:
    """Shapes are compared where both are known."""
    module = import_model(save_program({"y": _ones}, tmp_path, torch.ones(3)))

    assert str(module["main"].ret_ty.fields[0].dtype) == "float32"


def test_a_program_whose_onnx_model_differs_is_refused(tmp_path: Path) -> None:
    """The message names the output; the quadrant is wrong at zeros of torch's formula in ONNX."""
    functions = {**_WINDOWS, "quadrant": lambda x: torch.atan2(x, x.flip(1))}

    with pytest.raises(ModelError, match="computes another 'atan2' for inputs of about"):
        import_model(save_program(functions, tmp_path, torch.ones(1, 8)))


def test_outputs_of_an_onnx_model_have_the_dtype_of_torch(tmp_path: Path) -> None:
    """The model that torch writes for some programs of float16 has outputs of float32."""
    file = save_program(
        {"y": lambda x: x.unfold(1, 3, 1).amax(1)}, tmp_path, torch.ones(3, 4).half()
    )

    with pytest.raises(ModelError, match=r"float16 \[3, 3\], becomes float32 \[3, 3\]"):
        import_model(file)


def test_a_program_that_neither_importer_supports_is_refused(tmp_path: Path) -> None:
    """The message has both reasons, which name the operator."""
    file = save_program({"y": torch.special.bessel_j0}, tmp_path, torch.ones(4))

    with pytest.raises(
        ModelError, match=r"Unsupported function .*bessel_j0.*; as ONNX: .*bessel_j0"
    ):
        import_model(file)


def test_a_program_that_draws_random_numbers_is_refused(tmp_path: Path) -> None:
    """They became constants that were drawn at the import."""
    file = save_program({"y": lambda x: x + torch.randn(4)}, tmp_path, torch.ones(3, 4))

    with pytest.raises(ModelError, match="depends on random numbers") as caught:
        import_model(file)

    assert caught.value.code == "random-operator"
