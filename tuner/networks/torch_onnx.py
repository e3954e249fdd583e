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
        model: onnx.ModelProto = torch.onnx.export(program, dynamo=True, verbose=False).model_proto
    return model


@contextlib.contextmanager
def exporter() -> Iterator[ModuleType]:
    """Return torch, whose exceptions inside of the block are those of a conversion to ONNX.

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
