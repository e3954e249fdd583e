"""Programs of torch keep their results, by way of ONNX where TVM's importer fails."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional
from tvm import relax

from tuner.engines.base import ModelFile
from tuner.engines.relax.frontend.importer import import_model
from tuner.engines.relax.graph.definitions import nested_calls
from tuner.engines.relax.graph.pipeline import lower
from tuner.engines.relax.target.targets import describe_target, make_target
from tuner.errors import ModelError

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore")]


class Applied(torch.nn.Module):  # type: ignore[misc]
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the function."""
        return self.function(x)


def _saved(function: Callable[..., torch.Tensor], x: torch.Tensor, folder: Path) -> ModelFile:
    path = folder / "m.pt2"
    torch.export.save(torch.export.export(Applied(function), (x,)), path)
    dtype = str(x.dtype).removeprefix("torch.")
    return ModelFile(str(path), "pt2", {"x": (tuple(x.shape), dtype)})


def _assert_equal(function: Callable[..., torch.Tensor], x: torch.Tensor, folder: Path) -> None:
    """Check that the lowered program has the result of the function, and its dtype."""
    target = make_target(describe_target("llvm").spec, intrinsics=False)
    module = lower(_saved(function, x, folder), target, is_whole=True).module
    built = tvm.compile(module, target, tir_pipeline=nested_calls.PIPELINE)
    machine = relax.VirtualMachine(built, tvm.cpu())
    returned = machine["main"](tvm.runtime.tensor(x.numpy()))
    expected = function(x)
    outputs = [returned] if hasattr(returned, "numpy") else [*returned]
    references = expected if isinstance(expected, tuple) else (expected,)
    for actual, reference in zip(outputs, references, strict=True):
        np.testing.assert_allclose(actual.numpy(), reference.numpy(), rtol=1e-6, strict=True)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: torch.aminmax(x, dim=1)[0], id="operator that TVM does not know"),
        pytest.param(lambda x: (x > 0).cumsum(1), id="sum of truth values"),
        pytest.param(lambda x: x.unfold(1, 3, 2), id="windows"),
        pytest.param(
            lambda x: x[torch.tensor([0, 2, 1]), :, torch.tensor([0, 2, 1])],
            id="axis between indices, which TVM misreads",
        ),
        pytest.param(
            lambda x: torch.cond(x.sum() > 0, lambda x: x[:, -1] + 2, lambda x: x[:, 0] * 2, (x,)),
            id="own converters in a branch",
        ),
        pytest.param(
            lambda x: (x + torch.full((7, 4), -torch.inf).tril(-1)).exp(), id="infinite mask"
        ),
    ],
)
def test_operators_that_tvm_fails_on_are_imported(
    function: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    """These programs were refused, could not be compiled, or had another dtype."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 7, 4), "float32"))

    _assert_equal(function, x, tmp_path)


def test_bfloat16_has_kernels_for_gpus(tmp_path: Path) -> None:
    """TVM lacks these operators for it; their kernels compute in float32 without conversions."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        norms = functional.layer_norm(x, (5,)), functional.group_norm(x, 2)
        return *norms, functional.instance_norm(x), x.abs() ** 0.5, x // 2, x.argmax(-1)

    x = torch.ones(1, 4, 3, 5, dtype=torch.bfloat16)
    target = make_target(describe_target("cuda:sm_90").spec, intrinsics=False)

    module = lower(_saved(function, x, tmp_path), target).module

    outputs = module["main"].ret_ty.fields
    assert [str(each.dtype) for each in outputs] == ["bfloat16"] * 5 + ["int64"]


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x / 3, id="true division"),
        pytest.param(lambda x: x // 3, id="floor division"),
        pytest.param(lambda x: x.float().mean(), id="mean"),
        pytest.param(lambda x: x ** x.flip(0).abs(), id="powers, which TVM lacks"),
    ],
)
def test_whole_numbers_keep_the_dtype_of_torch(
    function: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    """Quotients of whole numbers were whole numbers."""
    _assert_equal(function, torch.arange(-4, 8).reshape(3, 4), tmp_path)


_PLACES = torch.tensor([3, 1]).expand(3, 5, 2).clone()


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.scatter(2, _PLACES, -x[:, :5, :2]), id="elements"),
        pytest.param(lambda x: x.scatter(2, _PLACES, 7.0), id="number"),
        pytest.param(lambda x: x.scatter_add(2, _PLACES, x[:, :5, :2]), id="sum"),
        pytest.param(
            lambda x: x.scatter_reduce(2, _PLACES, -x[:, :5, :2], "amax"), id="largest element"
        ),
        pytest.param(
            lambda x: x + torch.zeros(3, 7, 4).scatter(2, _PLACES, torch.ones(3, 5, 2)),
            id="constants, which TVM folds",
        ),
    ],
)
def test_scatters_to_a_part_write_where_torch_does(
    function: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    """TVM counts rows by the indices, which have fewer of them than the tensor."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 7, 4), "float32"))

    _assert_equal(function, x, tmp_path)


def _ones(x: torch.Tensor) -> torch.Tensor:
    length = x.to(torch.int64).sum().item()
    torch._check(length >= 0)
    torch._check(length < 40)
    return x + torch.ones(length).sum()


def test_a_size_inside_may_depend_on_the_data(tmp_path: Path) -> None:
    """Shapes are compared where both are known."""
    module = import_model(_saved(_ones, torch.ones(3), tmp_path))

    assert str(module["main"].ret_ty.fields[0].dtype) == "float32"


def _by_onnx(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function that has windows as well, which TVM does not know."""
    return lambda x: (function(x), x.unfold(0, 3, 2))


@pytest.mark.parametrize("is_by_onnx", [False, True], ids=["directly", "by way of ONNX"])
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(functional.logsigmoid, id="logsigmoid"),
        pytest.param(lambda x: torch.logaddexp(x, x.flip(0)), id="logaddexp"),
        pytest.param(lambda x: torch.logaddexp2(x, x.flip(0)), id="logaddexp2"),
        pytest.param(torch.expm1, id="expm1"),
        pytest.param(torch.log1p, id="log1p"),
        pytest.param(functional.softplus, id="softplus"),
        pytest.param(torch.sign, id="sign"),
        pytest.param(lambda x: x.isfinite() * x, id="isfinite"),
    ],
)
def test_formulas_do_not_overflow(
    function: Callable[[torch.Tensor], torch.Tensor], is_by_onnx: bool, tmp_path: Path
) -> None:
    """Numbers of all magnitudes give what torch computes, whichever importer takes them."""
    sizes = torch.tensor([0.0, 1e-30, 1e-8, 0.3, 1.0, 10.0, 50.0, 80.0, 110.0, 1e4, 1e30])

    _assert_equal(_by_onnx(function) if is_by_onnx else function, sizes.abs(), tmp_path)
    if function is not torch.log1p:
        _assert_equal(_by_onnx(function) if is_by_onnx else function, -sizes, tmp_path)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.amax(0), id="amax"),
        pytest.param(lambda x: x.amin((0, 1), keepdim=True), id="amin"),
        pytest.param(lambda x: torch.logcumsumexp(x, 1), id="logcumsumexp"),
        pytest.param(lambda x: torch.logcumsumexp(x, 0), id="logcumsumexp of the first axis"),
        pytest.param(lambda x: x.clamp(-2, 2), id="clamp"),
        pytest.param(lambda x: torch.maximum(x, x.flip(0)), id="maximum"),
        pytest.param(lambda x: x.argmax(1), id="argmax"),
        pytest.param(torch.relu, id="relu"),
        pytest.param(functional.hardtanh, id="hardtanh"),
        pytest.param(lambda x: (x.ne(x), x != 2, x != x.flip(0), x.count_nonzero(1)), id="unequal"),
        pytest.param(lambda x: (x.argmax(), x[0].argmin(), x[2].argmax(0)), id="places in a row"),
        pytest.param(
            lambda x: (*x.sort(1), *x.sort(dim=1, descending=True, stable=True), x.argsort(0)),
            id="sorts",
        ),
        pytest.param(
            lambda x: (
                *(torch.sign(x), torch.sgn(-x), torch.angle(x)),
                *(torch.heaviside(x, y) for y in (torch.tensor(0.5), x.flip(1))),
            ),
            id="sign",
        ),
        pytest.param(
            lambda x: (
                *x.median(1),
                *x.median(0, keepdim=True),
                x.nan_to_num(0, 9, -9).int().median(1)[0],
            ),
            id="median",
        ),
        pytest.param(
            lambda x: (
                *(x // y for y in (2.0, 0.0, -3.0, x.flip(0), x.flip(1))),
                *(x % y for y in (2.0, 0.0, -3.0, x.flip(0), x.flip(1))),
                torch.div(x, x.flip(1), rounding_mode="floor"),
                torch.div(x, x.flip(1), rounding_mode="trunc"),
            ),
            id="quotients that are rounded",
        ),
        pytest.param(lambda x: (x**0.5, x**-0.5), id="roots"),
        pytest.param(
            lambda x: (
                *(functional.softshrink(x), x * 0, 0.0 * x + 1, torch.where(x.eq(x), x, 0.0)),
                *((e := x.exp()) - e, torch.tensor(0.0) / x.abs()),
            ),
            id="products with 0, and numbers that equal themselves",
        ),
        pytest.param(
            lambda x: (
                torch.bucketize(x, torch.tensor([0.0, 1.0])),
                torch.bucketize(x, torch.tensor([0.0, 1.0]), right=True),
            ),
            id="bucketize",
        ),
        pytest.param(
            lambda x: tuple(
                (x * 3e5 - 7).to(dtype) for dtype in (torch.int8, torch.uint8, torch.int16)
            ),
            id="narrow whole numbers",
        ),
    ],
)
def test_special_numbers_give_what_torch_has(
    function: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    """NaN and infinities are where torch has them."""
    inf, nan = float("inf"), float("nan")
    rows = [[1.0, 2.0, 110.0, 1e4], [-inf, -inf, -inf, -inf], [nan, 1.0, 2.0, inf], [0.0] * 4]

    _assert_equal(function, torch.tensor(rows), tmp_path)


def test_a_program_whose_onnx_model_differs_is_refused(tmp_path: Path) -> None:
    """The message names the output; the quadrant is wrong at zeros of torch's formula in ONNX."""
    program = _by_onnx(lambda x: torch.atan2(x, x.flip(0)))

    with pytest.raises(ModelError, match="computes another 'atan2' for inputs of about"):
        import_model(_saved(program, torch.ones(8), tmp_path))


def test_outputs_of_an_onnx_model_have_the_dtype_of_torch(tmp_path: Path) -> None:
    """The model that torch writes for some programs of float16 has outputs of float32."""
    file = _saved(lambda x: x.unfold(1, 3, 1).amax(1), torch.ones(3, 4).half(), tmp_path)

    with pytest.raises(ModelError, match=r"float16 \[3, 3\], becomes float32 \[3, 3\]"):
        import_model(file)


def test_an_input_that_is_not_used_remains_an_input(tmp_path: Path) -> None:
    """The ONNX model that torch writes has it, too."""

    class Two(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, _y: torch.Tensor) -> torch.Tensor:
            return x.unfold(1, 3, 1)

    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Two(), (torch.ones(3, 4), torch.ones(2))), path)
    file = ModelFile(str(path), "pt2", {"x": ((3, 4), "float32"), "_y": ((2,), "float32")})

    assert len(import_model(file)["main"].params) == 2


def test_a_program_that_neither_importer_supports_is_refused(tmp_path: Path) -> None:
    """The message has both reasons, which name the operator."""
    file = _saved(torch.special.bessel_j0, torch.ones(4), tmp_path)

    with pytest.raises(
        ModelError, match=r"Unsupported function .*bessel_j0.*; as ONNX: .*bessel_j0"
    ):
        import_model(file)


def test_a_program_that_draws_random_numbers_is_refused(tmp_path: Path) -> None:
    """They became constants that were drawn at the import."""
    file = _saved(lambda x: x + torch.randn(4), torch.ones(3, 4), tmp_path)

    with pytest.raises(ModelError, match="depends on random numbers") as caught:
        import_model(file)

    assert caught.value.code == "random-operator"
