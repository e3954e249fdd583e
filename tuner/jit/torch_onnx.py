"""Convert exported torch programs to ONNX models, which services take; runs in a worker."""

import contextlib
import logging
import warnings
from pathlib import Path

from tuner.errors import ModelError, install_command, summary


def convert(program: str, out: str) -> None:
    """Write the program of a ``.pt2`` file to an ``.onnx`` file.

    Raises:
        ModelError: If torch cannot convert it; the message names the reason.
    """
    try:
        import onnxscript  # noqa: F401
        import torch
    except ImportError as error:
        raise ModelError(
            f"writing ONNX needs the extra torch: {install_command('torch')}", code="torch-missing"
        ) from error
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        try:
            written = torch.onnx.export(torch.export.load(program), dynamo=True, verbose=False)
            written.save(Path(out), external_data=False)
        # The exceptions of the exporter have no common base.
        except Exception as error:
            raise ModelError(
                f"torch cannot convert it to ONNX: {summary(error)}", code="torch-export"
            ) from error
