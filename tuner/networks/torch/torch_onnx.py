"""Conversion of exported torch programs to ONNX models, by torch's exporter."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import onnx

from tuner.errors import ModelError, install_command, summary


def as_onnx(program: Any) -> onnx.ModelProto:
    """Return an exported program as an ONNX model, with inputs and outputs in the same order.

    Raises:
        ModelError: If torch cannot convert it; the message names the reason.
    """
    with exporter() as torch, _quiet():
        model: onnx.ModelProto = torch.onnx.export(
            program.run_decompositions(_stable_decompositions(torch)),
            dynamo=True,
            verbose=False,
            custom_translation_table={
                torch.ops.aten.expm1.default: _expm1,
                torch.ops.aten.log1p.default: _log1p,
            },
        ).model_proto
    return model


def _stable_decompositions(torch: ModuleType) -> dict[Any, Any]:
    """Return decompositions of operators that ONNX lacks, or whose formulas in ONNX lose digits."""
    from tuner.networks.torch.torch_decompositions import DECOMPOSITIONS

    table = torch.export.default_decompositions()
    aten = torch.ops.aten
    operators = (
        *(aten.log_sigmoid, aten.log_sigmoid_forward),
        *(aten.logaddexp, aten.logaddexp2, aten.softplus),
    )
    return {**DECOMPOSITIONS, **{each.default: table[each.default] for each in operators}}


def _log1p(self: Any) -> Any:
    """Return log(1 + x), which is 2 atanh(x / (2 + x)) near 0."""
    from onnxscript import opset18

    op: Any = opset18
    one, two, limit = (op.CastLike(op.Constant(value_float=n), self) for n in (1.0, 2.0, 0.5))
    near = op.Mul(two, op.Atanh(op.Div(self, op.Add(self, two))))
    return op.Where(op.Less(op.Abs(self), limit), near, op.Log(op.Add(self, one)))


def _expm1(self: Any) -> Any:
    """Return exp(x) - 1, which is tanh(x / 2) (exp(x) + 1)."""
    from onnxscript import opset18

    op: Any = opset18
    one, half = (op.CastLike(op.Constant(value_float=n), self) for n in (1.0, 0.5))
    return op.Mul(op.Tanh(op.Mul(self, half)), op.Add(op.Exp(self), one))


@contextlib.contextmanager
def exporter() -> Iterator[ModuleType]:
    """Return torch; its exceptions inside of the block become conversion errors.

    Raises:
        ModelError: In place of them, or if torch or what it writes ONNX with is not installed.
    """
    try:
        import onnxscript  # noqa: F401
        import torch
    except ImportError as error:
        raise ModelError(
            f"writing ONNX needs the extra torch: {install_command('torch')}", code="torch-missing"
        ) from error
    try:
        yield torch
    except ModelError:
        raise
    # The exceptions of the exporter have no common base.
    except Exception as error:
        raise ModelError(
            f"torch cannot convert it to ONNX: {summary(_origin(error))}", code="torch-export"
        ) from error


def _origin(error: BaseException) -> BaseException:
    """Return the error that the others were raised from: it names the operator."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which logs, warns and prints."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
