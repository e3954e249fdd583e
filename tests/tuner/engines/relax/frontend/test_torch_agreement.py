"""ONNX models of programs are refused for errors of formulas, not for roundings."""

from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
from torch.nn import functional

from tests.tuner.engines.relax.frontend.torch_programs import Applied, grouped
from tuner.engines.relax.frontend.torch_agreement import check_agreement
from tuner.errors import ModelError
from tuner.networks.torch.torch_onnx import as_onnx

Function = Callable[[torch.Tensor], Any]

_WEIGHT = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
# Each has results that another order of sums, another libm or another order of ties changes.
_SENSITIVE: list[Function] = [
    lambda x: x - x.mean(),
    lambda x: (x * x).mean() - x.mean() ** 2,
    lambda x: (x * x).mean().sub(x.mean() ** 2).sqrt(),
    lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5),
    lambda x: functional.layer_norm(x, (6,)),
    lambda x: functional.group_norm(x.reshape(1, 4, 6), 2),
    lambda x: x.cumsum(1),
    lambda x: torch.topk(x.relu(), 4),
    lambda x: torch.topk(x.round(), 3, largest=False),
    lambda x: torch.sort(x.sigmoid(), 1, descending=True),
    lambda x: torch.argsort(x.relu(), 0),
    lambda x: torch.arange(24.0).reshape(4, 6).gather(1, torch.topk(x, 2).indices),
    lambda x: (x @ x.t()).argmax(1),
    lambda x: torch.softmax(x, 1).argmax(0),
    lambda x: torch.sin(30 * (x @ _WEIGHT)),
    lambda x: torch.sin(30 * torch.sin(30 * (x @ _WEIGHT))),
    torch.tan,
    lambda x: torch.fmod(x @ _WEIGHT, 1.0),
    lambda x: x - torch.floor(x),
    lambda x: torch.floor(x @ _WEIGHT),
    lambda x: torch.round(x * 3),
    lambda x: (x @ _WEIGHT) > (x @ _WEIGHT).mean(),
    lambda x: torch.where(x @ _WEIGHT >= _WEIGHT.mean(), x * 2, -x),
    lambda x: x.half().float().exp(),
    lambda x: (x.bfloat16() * 3).float().exp(),
]


def program_of(dtype: torch.dtype, function: Function) -> Any:
    """Return the program of a function of 4 rows and 6 columns."""
    return torch.export.export(Applied({"y": function}), (torch.ones(4, 6).to(dtype),))


_ROUNDED: list[dict[torch.dtype, list[Function]]] = [
    {torch.float32: _SENSITIVE},
    {torch.float16: [functional.gelu, lambda x: functional.layer_norm(x @ x.t(), (4,))]},
    {
        torch.bfloat16: [functional.gelu, lambda x: torch.softmax(x @ x.t(), -1)],
        torch.float64: [lambda x: x - x.mean(), lambda x: torch.cos(30 * x)],
        torch.int64: [lambda x: x // (x + 1), lambda x: _WEIGHT[x[0]], lambda x: x.sort(0)],
        torch.bool: [lambda x: torch.where(x, 1.0, -1.0), lambda x: x.any(1)],
    },
]


@pytest.mark.parametrize("rounded", _ROUNDED, ids=["float32", "float16", "others"])
def test_roundings_refuse_no_program(rounded: dict[torch.dtype, list[Function]]) -> None:
    """Sums that cancel, ties, phases of large arguments and narrow types have many results."""
    functions = grouped(*({str(n): f for n, f in enumerate(each)} for each in rounded.values()))
    inputs = tuple(torch.ones(4, 6).to(dtype) for dtype in rounded)
    program = torch.export.export(Applied(functions), inputs)

    check_agreement(program, as_onnx(program))


@pytest.mark.parametrize(
    ("function", "body"),
    [
        (functional.logsigmoid, "s = Sigmoid (x) y = Log (s)"),
        (functional.softplus, "e = Exp (x) o = CastLike (one, x) s = Add (o, e) y = Log (s)"),
        (torch.expm1, "e = Exp (x) o = CastLike (one, x) y = Sub (e, o)"),
        (torch.log1p, "o = CastLike (one, x) s = Add (x, o) y = Log (s)"),
        (lambda x: torch.atan2(x, x.square()), "s = Mul (x, x) q = Div (x, s) y = Atan (q)"),
        (lambda x: x.softmax(1), "e = Exp (x) s = ReduceSum (e, one) y = Div (e, s)"),
        (lambda x: x.argmax(1), "y = ArgMin <axis = 1, keepdims = 0> (x)"),
        (
            lambda x: x.relu().argmax(1),
            "r = Relu (x) y = ArgMax <axis = 1, keepdims = 0, select_last_index = 1> (r)",
        ),
        (lambda x: torch.topk(x, 1).indices, "v, y = TopK <largest = 0> (x, one)"),
        (torch.round, "h = Constant <value_float = 0.5> () s = Add (x, h) y = Floor (s)"),
        (torch.floor, "i = Cast <to = 7> (x) y = CastLike (i, x)"),
        (torch.selu, "y = Elu (x)"),
        (
            lambda x: torch.sin(30 * x),
            "f = Constant <value_float = 31.0> () p = Mul (f, x) y = Sin (p)",
        ),
        (
            lambda x: functional.layer_norm(x, (6,)),
            "s = Constant <value_floats = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]> () "
            "y = LayerNormalization <epsilon = 0.001> (x, s)",
        ),
        (lambda x: x >= 0, "z = Constant <value_float = 0.0> () y = Greater (x, z)"),
        (lambda x: x.cumsum(1), "y = CumSum <exclusive = 1> (x, one)"),
        (lambda x: x.std(1), "y = Identity (x)"),
    ],
)
def test_another_formula_is_refused(function: Function, body: str) -> None:
    """It overflows, loses digits, or differs at ties, halves, zeros or everywhere."""
    program = program_of(torch.float32, function)
    (output,) = program.graph_signature.user_outputs
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]>'
        f"g (float[4, 6] x) => (float y) <int64[1] one = {{1}}> {{ {body} }}"
    )

    with pytest.raises(ModelError, match=f"computes another '{output}' for inputs of"):
        check_agreement(program, model)


def test_narrow_numbers_are_compared() -> None:
    """NumPy has no bfloat16, and ONNX Runtime few operators of it."""
    program = program_of(torch.bfloat16, torch.expm1)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (bfloat16[4, 6] x) => (bfloat16 y) '
        "{ w = Cast <to = 1> (x) e = Exp (w) y = Cast <to = 16> (e) }"
    )

    with pytest.raises(ModelError, match="computes another 'expm1' for inputs of about 1:"):
        check_agreement(program, model)


def test_a_program_that_torch_cannot_run_is_refused() -> None:
    """Nothing would be compared."""

    def checked(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 1e30).all())
        return x + 1

    program = program_of(torch.float32, checked)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[4, 6] x) => (float y) { y = Exp (x) }'
    )

    with pytest.raises(ModelError, match=r"torch cannot run the program \(Expected Tensor"):
        check_agreement(program, model)
